"""The measurements behind `baton bench`, `baton profile` and `baton plan`."""

from __future__ import annotations


def main(command: str, arguments: list[str]) -> int:
    """Returns the exit status that the command's help describes."""
    if command == "profile":
        from loadtest.plan.profile_command import main as profile

        return profile(arguments)
    if command == "plan":
        from loadtest.plan.plan_command import main as plan

        return plan(arguments)
    if arguments[:1] == ["crossover"]:
        from loadtest.crossover.command import main as crossover

        return crossover(arguments[1:])
    if arguments[:1] == ["peers"]:
        from loadtest.peers.command import main as peers

        return peers(arguments[1:])
    if arguments[:1] == ["show"]:
        from loadtest.comparison.command import main as show

        return show(arguments[1:])
    from loadtest.bench.command import main as load

    return load(arguments)
