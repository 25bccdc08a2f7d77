"""`gradwire certs`: makes a CA and certificates in folders, and says what is in them."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, NamedTuple

import typer

from gradwire_proto import certificates
from gradwire_proto.certificates import CA_FILE, CERTIFICATE_FILE, KEY_FILE, CertificateError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gradwire_ops.certs_authority import Authority

CA_KEY_FILE = "ca.key"
"""Only in the CA's folder."""

KEY_MODE, CERTIFICATE_MODE = 0o600, 0o644


class Order(NamedTuple):
    """A certificate that is wanted."""

    name: str
    hosts: tuple[str, ...]
    days: int


class CertsError(Exception):
    """It can't be done; the text says why."""


def init(folder: Path, *, force: bool) -> int:
    """Make a CA."""
    return _tried(_init, folder, force)


def _init(folder: Path, force: bool) -> None:
    authority = _library().create()
    _write(folder, {CA_KEY_FILE: authority.key, CA_FILE: authority.certificate}, force=force)
    typer.echo(
        f"made a CA in {folder}. {CA_KEY_FILE} signs certificates: keep it off the nodes, and"
        f" safe.\nNext, for each node: gradwire certs issue {folder} NAME --host ADDRESS --out"
        " DIR"
    )


def issue(folder: Path, order: Order, out: Path, *, force: bool) -> int:
    """Issue a certificate for a node."""
    return _tried(_issue, folder, order, out, force)


def _issue(folder: Path, order: Order, out: Path, force: bool) -> None:
    authority = _authority(folder)
    issued = authority.issue(order.name, order.hosts, order.days)
    files = {KEY_FILE: issued.key, CERTIFICATE_FILE: issued.certificate}
    _write(out, {CA_FILE: authority.certificate, **files}, force=force)
    typer.echo(f"issued a certificate for {', '.join(order.hosts)} in {out}")


def renew(folder: Path, directory: Path, days: int, *, keep_key: bool) -> int:
    """Issue a certificate again."""
    return _tried(_renew, folder, directory, days, keep_key)


def _renew(folder: Path, directory: Path, days: int, keep_key: bool) -> None:
    authority = _authority(folder)
    files = certificates.read(directory)
    issued = authority.renew(files.certificate, days, files.key if keep_key else None)
    parts = {KEY_FILE: issued.key, CERTIFICATE_FILE: issued.certificate}
    _write(directory, {CA_FILE: authority.certificate, **parts}, force=True)
    typer.echo(f"renewed the certificate in {directory} for {days} days")


def show(directory: Path) -> int:
    """Say what is in a folder; 1 where that is wrong."""
    return _tried(_show, directory)


def _show(directory: Path) -> None:
    if (directory / CERTIFICATE_FILE).exists():
        findings = _show_node(directory)
    elif (directory / CA_FILE).exists():
        findings = _describe("CA", _read(directory / CA_FILE))
    else:
        raise CertsError(f"there is neither {CERTIFICATE_FILE} nor {CA_FILE} in {directory}")
    if findings:
        raise CertsError("\n".join(f"wrong: {each}" for each in findings))
    typer.echo("verdict: good")


def _show_node(directory: Path) -> list[str]:
    files = certificates.read(directory)
    findings = _describe("certificate", files.certificate)
    findings += _library().mistakes(files)
    if _readable_by_others(directory / KEY_FILE):
        findings.append(f"{KEY_FILE} can be read by others: chmod 600")
    if not findings:
        # What a daemon does at its start: it may know of more.
        try:
            certificates.inspect(files)
        except CertificateError as error:
            findings.append(str(error))
    return findings


def _describe(what: str, certificate: bytes) -> list[str]:
    """Print what a certificate says; returns what is wrong with its dates."""
    description = _library().describe(certificate)
    typer.echo(f"{what}: {description.subject}")
    typer.echo(f"names: {', '.join(description.names) or 'none'}")
    typer.echo(f"valid until: {description.expires:%Y-%m-%d %H:%M} UTC")
    typer.echo(f"issuer: {description.issuer}")
    return description.findings


# -- files


def _tried(act: Callable[..., None], *arguments: object) -> int:
    """Exit code of one of the commands."""
    try:
        act(*arguments)
    except (CertsError, CertificateError, OSError, ValueError) as error:
        typer.echo(str(error), err=True)
        return 1
    return 0


def _library() -> type[Authority]:
    """What makes and reads certificates, where `cryptography` is installed."""
    try:
        from gradwire_ops.certs_authority import Authority
    except ImportError as error:
        raise CertsError(
            f"{error}: `pip install 'gradwire[certs]'`; only this command needs it"
        ) from error
    return Authority


def _authority(folder: Path) -> Authority:
    if not (folder / CA_KEY_FILE).exists():
        raise CertsError(
            f"expected a CA in {folder}, found no {CA_KEY_FILE}: gradwire certs init {folder}"
        )
    return _library()(_read(folder / CA_FILE), _read(folder / CA_KEY_FILE))


def _read(path: Path) -> bytes:
    return path.read_bytes()


def _readable_by_others(path: Path) -> bool:
    """A group may, where Kubernetes mounts a secret for one."""
    return bool(path.stat().st_mode & stat.S_IROTH)


def _write(folder: Path, files: dict[str, bytes], *, force: bool) -> None:
    """Each file is there as a whole or not at all. Raises CertsError where one is there."""
    there = [name for name in files if (folder / name).exists()]
    if there and not force:
        raise CertsError(
            f"there is {', '.join(there)} in {folder} already; --force overwrites, and what was"
            " signed with a key that is gone is not taken any more"
        )
    folder.mkdir(parents=True, exist_ok=True, mode=0o750)
    for name, data in files.items():
        mode = KEY_MODE if name.endswith(".key") else CERTIFICATE_MODE
        beside = folder / f".{name}.new"
        beside.unlink(missing_ok=True)
        file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(file, "wb") as stream:
            stream.write(data)
        beside.replace(folder / name)
