"""Names of container images, by the grammar of registries: `[host[:port]/]path[:tag][@digest]`."""

from __future__ import annotations

import re

_HOST = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[-A-Za-z0-9]*[A-Za-z0-9])?)*|\[[0-9a-fA-F:]+\])"
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_TAG = r"[A-Za-z0-9_][-A-Za-z0-9_.]{0,127}"
_DIGESTS = {"sha256": 64, "sha384": 96, "sha512": 128}  # algorithm -> hexadecimal digits
_LONGEST_NAME = 255
_LARGEST_PORT = 65535


def image_problem(image: str) -> str | None:
    """Which part of an image's name no registry or container runtime would take; None where all are right."""
    name, at, digest = image.partition("@")
    if at and (problem := _digest_problem(digest)):
        return problem
    head, slash, last = name.rpartition("/")
    last, colon, tag = last.partition(":")
    name = head + slash + last
    if colon and not re.fullmatch(_TAG, tag):
        return f"the tag {tag!r} is not 1 to 128 letters, digits, `_`, `.` and `-`, the first of them no `.` or `-`"
    if len(name) > _LONGEST_NAME:
        return f"the name has {len(name)} characters of {_LONGEST_NAME} before tag and digest"
    first, slash, rest = name.partition("/")
    path = name
    if slash and (
        first == "localhost" or re.search(r"[.:A-Z\[]", first)
    ):  # else the first part is of the path
        path = rest
        if problem := _registry_problem(first):
            return problem
    for part in path.split("/"):
        if not re.fullmatch(_PART, part):
            return f"the part {part!r} of the path is not lower-case letters and digits, joined by `.`, `_` or dashes"
    if path == name and re.fullmatch("[0-9a-f]{64}", path):
        return "64 hexadecimal digits are an image's id, not a name"
    return None


def _digest_problem(digest: str) -> str | None:
    algorithm, _, digits = digest.partition(":")
    length = _DIGESTS.get(algorithm)
    if length is None:
        return f"the digest {digest!r} does not begin with {', '.join(f'`{name}:`' for name in _DIGESTS)}"
    if not re.fullmatch(f"[0-9a-f]{{{length}}}", digits):
        return f"the digest is not `{algorithm}:` and {length} lower-case hexadecimal digits ({len(digits)} characters)"
    return None


def _registry_problem(registry: str) -> str | None:
    match = re.fullmatch(rf"({_HOST})(?::([0-9]+))?", registry)
    if not match:
        return f"the registry {registry!r} is not a host name or address, with `:port` where it needs one"
    if match[2] and not 0 < int(match[2]) <= _LARGEST_PORT:
        return f"the registry's port {match[2]} is not 1 to {_LARGEST_PORT}"
    return None
