"""Text from outside, made fit for a terminal or a log line."""


def plain(text: str) -> str:
    r"""`text` with every character that does not print written as an escape such as `\x1b`.

    Control characters, line ends, text-direction marks and lone surrogates are escaped, so that
    a process name or a request path can neither move the cursor nor forge a line. A backslash
    stays as it is: this is for reading, not for turning back.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
