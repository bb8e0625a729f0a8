"""`sitsctl metrics-user`: makes a line for the file of those who may read the metrics."""

import sys
from typing import Final

import click

from agent.cli import USAGE, fail

MAX_PASSWORD_BYTES: Final = 512


@click.command("metrics-user")
@click.argument("name")
def metrics_user(name: str) -> None:
    """Ask for a password, or read it from a pipe, and print the line of NAME for metrics_users.

    The password itself is kept nowhere. As in: sitsctl metrics-user scraper >>/etc/sits/users
    """
    from agent.passwords import user_line

    if sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline(MAX_PASSWORD_BYTES + 2).removesuffix("\n")
    if not 1 <= len(password.encode()) <= MAX_PASSWORD_BYTES:
        fail(f"a password is 1 to {MAX_PASSWORD_BYTES} bytes", USAGE)
    try:
        click.echo(user_line(name, password))
    except ValueError as error:
        fail(str(error), USAGE)
