"""One list of cases for every op set: the kernels of each instruction set, TorchOps, and plain float64.

A case (cases.py) is a few calls of an op set. run.py runs it, with any op set, on the tokens of some sequences.
"""
