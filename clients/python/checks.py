"""What the programs of this folder share: counting checks, and naming what differs."""

import time

count = 0


def same(got, expected, what):
    """One check: `got` is exactly `expected`."""
    global count
    count += 1
    if got != expected:
        raise AssertionError(f"{what}: expected {expected!r}, but got {got!r}")


def true(condition, what):
    same(bool(condition), True, what)


def raises(kind, what, function, *arguments, **named):
    """One check: the call raises `kind`, which is returned."""
    global count
    count += 1
    try:
        result = function(*arguments, **named)
    except kind as error:
        return error
    raise AssertionError(f"{what}: expected {kind.__name__}, but it returned {result!r}")


def took(start, seconds, what):
    """Not early, and at most half a second late: ten times what the server promises on an idle machine."""
    elapsed = time.monotonic() - start
    true(seconds <= elapsed <= seconds + 0.5, f"{what} took {elapsed:.3f} s, {seconds} s expected")


def done(name):
    print(f"{name}: {count} checks passed")
