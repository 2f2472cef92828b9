"""The house rules of ARCHITECTURE.md, read from the sources: who may know whom, and what must not be there at all.

Each rule is a function from sources to complaints. It is held against the tree, and against small bad samples, so that
a rule that has stopped seeing anything fails too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
Sources = Mapping[str, str]  # path from the root -> text

MAX_LINES = 450
MAX_OPS = 16

# Room of cpp/fastpaged -> rooms it may include, beside itself.
CPP_FLOORS: Mapping[str, frozenset[str]] = {
    "base": frozenset(),
    "request": frozenset({"base"}),
    "kv_cache": frozenset({"base"}),
    "ops": frozenset({"base"}),
    "scheduler": frozenset({"base", "request", "kv_cache"}),
    "graph": frozenset({"base", "ops"}),
    "sampling": frozenset({"base", "request", "ops"}),
}
# kv_cache and scheduler know ids: no tensor, no device, no threads.
NO_TENSORS_IN = ("kv_cache", "scheduler", "request")
TENSOR_HEADERS = ("fastpaged/base/tensor_view.h", "fastpaged/base/thread_pool.h", "fastpaged/base/cpu_features.h")

# Header pattern -> the only folder that may include it (None: nobody).
PRIVATE_HEADERS: Mapping[str, str | None] = {
    r"pybind11/.*|Python\.h": "python/bindings/",
    r"[a-z]*mmintrin\.h|immintrin\.h|x86intrin\.h|arm_(neon|sve|bf16)\.h": "cpp/fastpaged/ops/cpu/",
    r"cuda(_runtime|_bf16|_fp16|_fp8)?(_api)?\.h": "cuda/",
    r"torch/.*|ATen/.*|c10/.*|omp\.h": None,
    r"doctest/.*": "tests/cpp/",
    r"benchmark/.*": "bench/cpp/",
}

_DATA_AND_ERRORS = """
config errors absent_names param_checks start_up sampling_params beam_search_params
outputs kv_snapshot kv_events progress
"""
# Lowest floor first; a module may import its own floor and those below.
PYTHON_FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"_core", "_core_machine", "_core_plan", "_core_snapshot"}),  # the others are stubs of the first
    frozenset(_DATA_AND_ERRORS.split()),
    frozenset({"formats"}),
    frozenset({"tokenizer", "ops"}),
    frozenset({"models"}),
    frozenset({"weights"}),
    frozenset({"worker"}),
    frozenset({"executor"}),
    frozenset({"engine"}),
    frozenset({"llm", "simulator", "client"}),
    frozenset({"server"}),
    frozenset({"cli", "__main__", "__init__"}),
)
# Package -> how the modules that may import it are named: what not every installation has, and what only checks ours.
HOMES_OF_PACKAGES: Mapping[str, tuple[str, ...]] = {
    "torch": ("torch_",),
    "transformers": ("torch_", "transformers_"),
    "safetensors": ("torch_",),
    "gguf": ("torch_",),
    "opentelemetry": ("otel_",),
}

# Calls that make a container, and methods that change one.
CONTAINERS = re.compile("list|dict|set|bytearray|deque|defaultdict|OrderedDict|Counter|ContextVar|local")
MUTATORS = re.compile("append|extend|insert|add|update|setdefault|pop|popitem|remove|discard|clear")


# ---- reading


def read_tree(*patterns: str) -> dict[str, str]:
    paths = sorted({path for pattern in patterns for path in ROOT.glob(pattern)})
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths if path.is_file()}


def cpp_sources() -> dict[str, str]:
    return read_tree(
        *(f"{d}/**/*.{e}" for d in ("cpp", "python/bindings", "cuda", "tests/cpp", "bench/cpp") for e in CPP_ENDINGS)
    )


CPP_ENDINGS = ("h", "cc", "inc", "cu", "cuh")


def python_sources() -> dict[str, str]:
    return read_tree(*(f"python/fastpaged/**/*.{ending}" for ending in ("py", "pyi", "pyx", "pxi")))


def includes(text: str) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', text, re.MULTILINE)


def imports(path: str, text: str) -> set[str]:
    """Dotted names of everything a module imports, wherever in it. Relative imports are written out."""
    if path.endswith((".pyx", ".pxi")):  # Cython is no Python to ast; its imports are plain lines
        found = re.findall(r"^\s*(?:from|import|cimport)\s+([\w.]+)", text, re.MULTILINE)
        return set(found)
    names: set[str] = set()
    package = path.removeprefix("python/").split("/")[:-1]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from fastpaged import _core` imports a module called by the name.
            names.update(f"{module}.{alias.name}" for alias in node.names)
    return names


def room_of(path: str) -> str:
    return path.removeprefix("cpp/fastpaged/").removeprefix("fastpaged/").split("/")[0]


# ---- the rules


def cpp_floors(sources: Sources) -> Iterable[str]:
    for path, text in sources.items():
        if not path.startswith("cpp/fastpaged/"):
            continue
        room = room_of(path)
        if room not in CPP_FLOORS:
            yield f"{path}: room {room!r} is on no floor"
            continue
        for header in includes(text):
            if header.startswith("bindings/"):
                yield f"{path}: includes {header}"
            if not header.startswith("fastpaged/"):
                continue
            other = room_of(header)
            if other != room and other not in CPP_FLOORS[room]:
                yield f"{path}: {room} may not know {other} ({header})"
            if room in NO_TENSORS_IN and header in TENSOR_HEADERS:
                yield f"{path}: {room} may not know tensors or devices ({header})"


def private_headers(sources: Sources) -> Iterable[str]:
    for path, text in sources.items():
        for header in includes(text):
            for pattern, home in PRIVATE_HEADERS.items():
                if re.fullmatch(pattern, header) and (home is None or not path.startswith(home)):
                    yield f"{path}: <{header}> may be included only in {home or 'no file'}"


def no_instruction_set_flags(sources: Sources) -> Iterable[str]:
    """Flags for a whole file leak its instructions into shared weak symbols; target regions do not."""
    for path, text in sources.items():
        for flag in re.findall(r"(?<![\w-])-m(?:avx|amx|arch|tune|cpu|sse|fma|bmi|f16c)[\w=.-]*", text):
            yield f"{path}: compiler flag {flag}"


def python_floors(sources: Sources) -> Iterable[str]:
    floor_of = {name: floor for floor, names in enumerate(PYTHON_FLOORS) for name in names}
    for path, text in sources.items():
        module = Path(path.removeprefix("python/fastpaged/")).parts[0].split(".")[0]
        if module not in floor_of:
            yield f"{path}: {module!r} is on no floor"
            continue
        for name in sorted(imports(path, text)):
            parts = name.split(".")
            if parts[0] != "fastpaged" or len(parts) < 2:
                continue
            if parts[1] in floor_of and floor_of[parts[1]] > floor_of[module]:
                yield f"{path}: {module} may not know {parts[1]} ({name})"


def python_packages(sources: Sources) -> Iterable[str]:
    for path, text in sources.items():
        for name in sorted(imports(path, text)):
            homes = HOMES_OF_PACKAGES.get(name.split(".")[0])
            if homes is not None and not Path(path).name.startswith(homes):
                expected = " and ".join(f"{home}*" for home in homes)
                yield f"{path}: {name.split('.')[0]} may be imported only in {expected} modules"


def no_module_state(sources: Sources) -> Iterable[str]:
    """No `global`; a list, dict or set at module level only as a CONSTANT nobody changes, or in a registry."""
    for path, text in sources.items():
        if not path.endswith(".py"):
            continue
        tree = ast.parse(text)
        changed = set(_changed_names(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.Global):
                yield f"{path}:{node.lineno}: global {', '.join(node.names)}"
        if Path(path).name == "registry.py":
            continue
        for node in tree.body:
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None and _is_mutable(node.value):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = {ast.unparse(target) for target in targets}
                constant = all(name.isupper() or name == "__all__" for name in names) and not names & changed
                if not constant or _is_empty(node.value):
                    yield f"{path}:{node.lineno}: module-level state ({ast.unparse(node)[:60]})"


def _is_mutable(value: ast.expr) -> bool:
    if isinstance(value, (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)):
        return True
    return isinstance(value, ast.Call) and CONTAINERS.fullmatch(ast.unparse(value.func).split(".")[-1]) is not None


def _is_empty(value: ast.expr) -> bool:
    """An empty container at module level waits to be filled."""
    return not next((True for child in ast.iter_child_nodes(value) if not isinstance(child, ast.expr_context)), False)


def _changed_names(tree: ast.Module) -> Iterable[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            yield ast.unparse(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if MUTATORS.fullmatch(node.func.attr):
                yield ast.unparse(node.func.value)
        elif isinstance(node, ast.AugAssign):
            yield ast.unparse(node.target)


def file_sizes(sources: Sources) -> Iterable[str]:
    for path, text in sources.items():
        lines = text.count("\n")
        if lines > MAX_LINES:
            yield f"{path}: {lines} lines; above {MAX_LINES} there is more than one noun in it"


def op_table_size(sources: Sources) -> Iterable[str]:
    ops = op_names(sources["cpp/fastpaged/ops/op_table.h"])
    if not 0 < len(ops) <= MAX_OPS:
        yield f"the op table has {len(ops)} ops; it has at least 1 and at most {MAX_OPS}"


def op_names(header: str) -> list[str]:
    table = re.search(r"struct OpTable \{(.*?)^\};", header, re.DOTALL | re.MULTILINE)
    return re.findall(r"\(\*(\w+)\)\(", table.group(1)) if table else []


def no_vendored_code(sources: Sources) -> Iterable[str]:
    """third_party holds finders and the table; git submodules and bundled archives have no place."""
    for path in sources:
        if path.startswith("third_party/") and not path.endswith((".md", ".cmake")):
            yield f"{path}: third_party/ holds no code"
        if path == ".gitmodules" or path.endswith((".a", ".so", ".tar.gz", ".zip", ".whl", ".jar")):
            yield f"{path}: vendored"


def dependencies_are_in_the_table(sources: Sources) -> Iterable[str]:
    """What pyproject.toml asks for has its row (name, version, licence, why) in third_party/README.md."""
    table = sources["third_party/README.md"].lower()
    asked = re.findall(r'"([A-Za-z][\w.-]*)\s*(?:[<>=!~]=?|(?="))', _dependency_lists(sources["pyproject.toml"]))
    if not asked:
        yield "pyproject.toml: no dependency found"
    for name in asked:
        if f"| {name.lower()} |" not in table:
            yield f"third_party/README.md: no row for {name}"


def architecture_names_real_files(sources: Sources) -> Iterable[str]:
    """A file that ARCHITECTURE.md points to exists: from the root, the Python package or the C++ sources."""
    named = re.findall(r"`([\w/]+\.(?:py|pyx|pxi|h|cc|md))`", sources["ARCHITECTURE.md"])
    if len(named) < 20:
        yield f"ARCHITECTURE.md names {len(named)} files; the way of a request goes through more"
    for name in sorted(set(named)):
        if not any(home + name in sources for home in ("", "python/fastpaged/", "cpp/fastpaged/")):
            yield f"ARCHITECTURE.md: there is no {name}"


def seeded_faults_apply(sources: Sources) -> Iterable[str]:
    """The text that each fault of `make mutate` replaces is in its file, exactly once, and is changed by it."""
    calls = [node for node in ast.walk(ast.parse(sources["tests/mutants/faults.py"])) if isinstance(node, ast.Call)]
    faults = [{kw.arg: ast.literal_eval(kw.value) for kw in call.keywords} for call in calls if _calls(call, "Fault")]
    if len(faults) < 10:
        yield f"tests/mutants/faults.py: {len(faults)} faults; ten were promised"
    for fault in faults:
        found = sources.get(f"cpp/fastpaged/{fault['file']}", "").count(fault["good"])
        if found != 1:
            yield f"tests/mutants/faults.py: {fault['name']}: {fault['file']} has its text {found} times"
        if fault["good"] == fault["bad"]:
            yield f"tests/mutants/faults.py: {fault['name']}: changes nothing"


def _calls(call: ast.Call, name: str) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == name


def _dependency_lists(pyproject: str) -> str:
    lists = re.findall(r"^(?:requires|dependencies|test|lint) = (\[[^\]]*\])", pyproject, re.MULTILINE)
    return "\n".join(lists)


# ---- held against the tree

EVERYTHING = ("cpp/**/*", "cuda/**/*", "python/**/*", "tests/**/*", "bench/**/*", "cmake/*", "third_party/**/*", "*")
TEXT = (".h", ".cc", ".inc", ".cu", ".cuh", ".py", ".pyx", ".pxi", ".pyi", ".cmake", ".txt", ".toml", ".md")


def text_sources() -> dict[str, str]:
    paths = {path for pattern in EVERYTHING for path in ROOT.glob(pattern) if path.is_file() and path.suffix in TEXT}
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in sorted(paths)}


def file_names() -> dict[str, str]:
    built = ("python/", "tests/")  # extension modules of a developer's build are ignored by git
    paths = {path for pattern in EVERYTHING for path in ROOT.glob(pattern) if path.is_file()}
    names = (str(path.relative_to(ROOT)) for path in sorted(paths))
    return {name: "" for name in names if not (name.startswith(built) and name.endswith(".so"))}


def cmake_sources() -> dict[str, str]:
    return {path: text for path, text in text_sources().items() if path.endswith((".cmake", ".txt", ".toml"))}


def code_sources() -> dict[str, str]:
    return {path: text for path, text in text_sources().items() if not path.endswith(".md")}


Rule = Callable[[Sources], Iterable[str]]
TREE: tuple[tuple[Rule, Callable[[], dict[str, str]]], ...] = (
    (cpp_floors, cpp_sources),
    (private_headers, cpp_sources),
    (no_instruction_set_flags, cmake_sources),
    (python_floors, python_sources),
    (python_packages, python_sources),
    (no_module_state, python_sources),
    (file_sizes, code_sources),
    (op_table_size, cpp_sources),
    (no_vendored_code, file_names),
    (dependencies_are_in_the_table, text_sources),
    (architecture_names_real_files, text_sources),
    (seeded_faults_apply, text_sources),
)


@pytest.mark.parametrize(("rule", "read"), TREE, ids=[rule.__name__ for rule, _ in TREE])
def test_the_tree_holds(rule: Rule, read: Callable[[], dict[str, str]]) -> None:
    sources = read()
    assert sources, "nothing was read"
    assert list(rule(sources)) == []


# ---- held against samples: each of these must be complained about

BAD: tuple[tuple[Rule, str, str], ...] = (
    (cpp_floors, "cpp/fastpaged/base/a.h", '#include "fastpaged/ops/params.h"'),
    (cpp_floors, "cpp/fastpaged/kv_cache/a.cc", '#include "fastpaged/scheduler/sequence.h"'),
    (cpp_floors, "cpp/fastpaged/graph/a.cc", ' # include "fastpaged/kv_cache/block_pool.h"'),
    (cpp_floors, "cpp/fastpaged/scheduler/a.cc", '#include "fastpaged/base/tensor_view.h"'),
    (cpp_floors, "cpp/fastpaged/ops/a.cc", '#include "bindings/handles.h"'),
    (cpp_floors, "cpp/fastpaged/cellar/a.cc", ""),
    (private_headers, "cpp/fastpaged/graph/a.cc", "#include <pybind11/numpy.h>"),
    (private_headers, "cpp/fastpaged/ops/reference/a.cc", "#include <immintrin.h>"),
    (private_headers, "tests/cpp/ops/a.cc", "#include <emmintrin.h>"),
    (private_headers, "python/bindings/a.cc", "#include <cuda_runtime.h>"),
    (private_headers, "cuda/a.cu", "#include <torch/extension.h>"),
    (private_headers, "cpp/fastpaged/base/a.cc", "#include <omp.h>"),
    (private_headers, "tests/cpp/proofs/a.cc", "#include <pybind11/numpy.h>"),
    (private_headers, "bench/cpp/a.cc", "#include <immintrin.h>"),
    (private_headers, "tests/cpp/scheduler/a.cc", "#include <benchmark/benchmark.h>"),
    (no_instruction_set_flags, "cpp/CMakeLists.txt", "target_compile_options(a PRIVATE -mavx512f)"),
    (no_instruction_set_flags, "CMakeLists.txt", 'set(CMAKE_CXX_FLAGS "-O3 -march=native")'),
    (python_floors, "python/fastpaged/config.py", "import fastpaged.engine.llm_engine"),
    (python_floors, "python/fastpaged/weights/a.py", "def f():\n    from fastpaged.worker import worker"),
    (python_floors, "python/fastpaged/tokenizer/a.py", "from ..models import llama"),
    (python_floors, "python/fastpaged/ops/a.py", "from fastpaged import llm"),
    (python_floors, "python/fastpaged/engine/a.pyx", "from fastpaged.llm import LLM"),
    (python_floors, "python/fastpaged/attic/a.py", ""),
    (python_packages, "python/fastpaged/worker/worker.py", "def f():\n    import torch.nn"),
    (python_packages, "python/fastpaged/tokenizer/a.py", "from transformers import AutoTokenizer"),
    (python_packages, "python/fastpaged/tokenizer/transformers_a.py", "import torch"),
    (no_module_state, "python/fastpaged/a.py", "CACHE = {}"),
    (no_module_state, "python/fastpaged/a.py", "seen: set[int] = set()"),
    (no_module_state, "python/fastpaged/a.py", "names = [n for n in 'ab']"),
    (no_module_state, "python/fastpaged/a.py", "SEEN = {1: 2}\ndef f(x):\n    SEEN[x] = 1"),
    (no_module_state, "python/fastpaged/a.py", "SEEN = [1]\ndef f(x):\n    SEEN.append(x)"),
    (no_module_state, "python/fastpaged/a.py", "x = None\ndef f():\n    global x\n    x = 1"),
    (file_sizes, "cpp/fastpaged/base/a.h", "int x;\n" * (MAX_LINES + 1)),
    (op_table_size, "cpp/fastpaged/ops/op_table.h", "struct OpTable {\n" + "  void (*op)(int);\n" * 17 + "};\n"),
    (op_table_size, "cpp/fastpaged/ops/op_table.h", "struct Elsewhere {};\n"),
    (no_vendored_code, "third_party/json.hpp", ""),
    (no_vendored_code, ".gitmodules", ""),
)


@pytest.mark.parametrize(
    ("rule", "path", "text"), BAD, ids=[f"{rule.__name__}-{i}" for i, (rule, _, _) in enumerate(BAD)]
)
def test_a_broken_rule_is_seen(rule: Rule, path: str, text: str) -> None:
    assert len(list(rule({path: text}))) == 1


def test_a_dependency_without_a_row_is_seen() -> None:
    pyproject = 'requires = ["alpha>=1"]\ndependencies = ["beta>=2", "gamma"]\n'
    table = "| name | version | licence | why |\n| beta | 2 | MIT | - |\n"
    complaints = list(dependencies_are_in_the_table({"pyproject.toml": pyproject, "third_party/README.md": table}))
    assert complaints == ["third_party/README.md: no row for alpha", "third_party/README.md: no row for gamma"]


def test_a_file_that_moved_away_from_the_architecture_is_seen() -> None:
    page = "".join(f"`room/file{i}.cc` " for i in range(20)) + "`gone.py`"
    tree = {"ARCHITECTURE.md": page, **{f"cpp/fastpaged/room/file{i}.cc": "" for i in range(20)}}
    assert list(architecture_names_real_files(tree)) == ["ARCHITECTURE.md: there is no gone.py"]


def test_a_fault_that_no_longer_applies_is_seen() -> None:
    fault = "Fault(name='{0}', file='room/a.cc', good='{1}', bad='')\n"
    faults = "".join(fault.format(i, "good") for i in range(9)) + fault.format("old", "gone") + fault.format("two", "o")
    complaints = list(seeded_faults_apply({"tests/mutants/faults.py": faults, "cpp/fastpaged/room/a.cc": "good"}))
    assert complaints == [
        "tests/mutants/faults.py: old: room/a.cc has its text 0 times",
        "tests/mutants/faults.py: two: room/a.cc has its text 2 times",
    ]


GOOD: tuple[tuple[Rule, str, str], ...] = (
    (cpp_floors, "cpp/fastpaged/graph/a.cc", '#include "fastpaged/ops/params.h"\n#include <vector>'),
    (private_headers, "cpp/fastpaged/ops/cpu/a.cc", "#include <immintrin.h>"),
    (private_headers, "python/bindings/a.cc", "#include <pybind11/numpy.h>"),
    (private_headers, "bench/cpp/a.cc", "#include <benchmark/benchmark.h>"),
    (python_floors, "python/fastpaged/cli/a.py", "from fastpaged.llm import LLM"),
    (python_floors, "python/fastpaged/worker/a.py", "from fastpaged import _core"),
    (python_packages, "python/fastpaged/worker/torch_worker.py", "import torch"),
    (python_packages, "python/fastpaged/tokenizer/transformers_a.py", "from transformers import AutoTokenizer"),
    (no_module_state, "python/fastpaged/models/registry.py", "MODELS = {}"),
    (no_module_state, "python/fastpaged/a.py", "NAMES: dict[str, int] = {'a': 1}\n_ALLOWED = {'a'}"),
    (no_module_state, "python/fastpaged/a.py", "__all__ = ['a']\nKINDS = ('a', 'b')"),
)


@pytest.mark.parametrize(("rule", "path", "text"), GOOD)
def test_a_kept_rule_is_left_alone(rule: Rule, path: str, text: str) -> None:
    assert list(rule({path: text})) == []
