"""Commands that have subcommands: Redis' errors for those that cannot run, and what HELP answers."""

from collections.abc import Iterable, Mapping

from stele.core.kv.commands import Failure, Simple, has_arity, text_of, wrong_number
from stele.wire.resp import Answer, Request


def refusal_or_help(request: Request, offered: Mapping[bytes, tuple[int, object]]) -> Answer:
    """Return the error for a subcommand that is not offered or misused, or the answer to HELP.

    None for one that runs. `offered` has by upper-case name the arity as in Redis, the command included, and
    the handler; a handler of HELP runs instead.
    """
    name = request[1].upper()
    if name in offered:
        return misused(offered[name][0], request)
    return answer_help(request, offered) if name == b"HELP" else unknown_subcommand(request)


def unknown_subcommand(request: Request) -> Failure:
    """Return the error for a subcommand that is not offered."""
    name = text_of(request[0]).upper()
    return Failure("ERR", f"unknown subcommand '{text_of(request[1])}'. Try {name} HELP.")


def misused(arity: int, request: Request) -> Failure | None:
    """Return the error for a wrong number of arguments; the arity counts the command too, as in Redis."""
    return None if has_arity(arity, request) else wrong_number(b"|".join(request[:2]))


def answer_help(request: Request, subcommands: Iterable[bytes]) -> Answer:
    """Answer HELP with the names of the subcommands."""
    if (failure := misused(2, request)) is not None:
        return failure
    name = text_of(request[0]).upper()
    begin = f"{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
    names = sorted(each.decode() for each in subcommands)
    return [Simple(line) for line in (begin, *names, "HELP", "    Print this help.")]
