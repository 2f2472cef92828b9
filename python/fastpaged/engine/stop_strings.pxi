# Where a text ends that comes in pieces. Part of output_processor.pyx.


cdef class _StopString:
    """How much of one string the text ends in: the automaton of Knuth, Morris and Pratt."""

    cdef readonly str text
    cdef readonly Py_ssize_t matched  # length of the longest proper prefix of `text` that the text so far ends in
    cdef list shorter                 # length of a matched prefix, less one -> the next shorter one

    def __init__(self, str text):
        self.text = text
        self.shorter = [0]
        cdef Py_ssize_t at
        for at in range(1, len(text)):  # the string is matched against itself
            self.advance(text[at])
            self.shorter.append(self.matched)
        self.matched = 0

    cdef _StopString copy(self):
        cdef _StopString other = _StopString.__new__(_StopString)
        other.text, other.matched, other.shorter = self.text, self.matched, self.shorter
        return other

    cdef bint advance(self, Py_UCS4 character):
        """Whether the text ends in the whole string now."""
        while self.text[self.matched] != character:
            if self.matched == 0:
                return False
            self.matched = self.shorter[self.matched - 1]
        self.matched += 1
        if self.matched < len(self.text):
            return False
        self.matched = self.shorter[self.matched - 1]
        return True


cdef class StopStrings:
    cdef list _strings
    cdef bint _included
    cdef str _holder           # what is held back is the beginning of this string,
    cdef Py_ssize_t _num_held  # of this length, and so it need not be kept
    cdef readonly object found

    def __init__(self, strings, bint included=False):
        self._strings = [_StopString(text) for text in strings]
        self._included = included
        self._holder = ""
        self._num_held = 0
        self.found = None

    cpdef StopStrings copy(self):
        cdef StopStrings other = StopStrings.__new__(StopStrings)
        other._strings = [(<_StopString>string).copy() for string in self._strings]
        other._included, other.found = self._included, self.found
        other._holder, other._num_held = self._holder, self._num_held
        return other

    @property
    def held(self):
        return self._holder[: self._num_held]

    cpdef str push(self, str text, bint may_stop=True):
        if self.found is not None:
            return ""
        cdef Py_ssize_t at
        cdef str shown
        for at in range(len(text)):
            if self._advance(text[at]) and may_stop:
                shown = self._first(text, self._num_held + at + 1 - (0 if self._included else len(self.found)))
                self._num_held = 0
                return shown
            self.found = None
        holder, num_held = self._longest_beginning()
        shown = self._first(text, self._num_held + len(text) - num_held)
        self._holder, self._num_held = holder, num_held
        return shown

    cpdef str finish(self):
        held = self.held
        self._num_held = 0
        return held

    cdef bint _advance(self, Py_UCS4 character):
        """Sets `found`. Every string sees every character."""
        cdef _StopString string
        for string in self._strings:
            if string.advance(character) and self.found is None:
                self.found = string.text
        return self.found is not None

    cdef str _first(self, str text, Py_ssize_t count):
        """The first characters of what was held and `text`."""
        if count <= self._num_held:
            return self._holder[:count]
        return self._holder[: self._num_held] + text[: count - self._num_held]

    cdef tuple _longest_beginning(self):
        """The string, and how much of it, that ends the text and may not be shown if the string is completed."""
        cdef _StopString string
        cdef str holder = ""
        cdef Py_ssize_t longest = 0
        if not self._included:
            for string in self._strings:
                if string.matched > longest:
                    holder, longest = string.text, string.matched
        return holder, longest
