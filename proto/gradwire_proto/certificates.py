"""A folder of certificates: whether it holds together, whom it names, and why others refuse it.

Python reads nothing of a certificate that it has not verified. So a folder is tried in a
rehearsal, a handshake with itself in memory: what passes that is what a connection needs, as a
whole. There is no socket here; who has one brings it (see `explain`).
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

CA_FILE, CERTIFICATE_FILE, KEY_FILE = NAMES = "ca.crt", "tls.crt", "tls.key"
"""As in a Kubernetes secret of type tls, as cert-manager writes it."""

VARIABLE = "GRADWIRE_CERTS"
"""Where callers without flags are told of the folder."""

LONGEST_FILE = 1 << 20

_ROUNDS = 4
"""A handshake is over after fewer."""

_NAME_MISMATCH = (62, 64)
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""
_TOO_EARLY, _TOO_LATE = 9, 10

_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH")
"""What OpenSSL makes of plain text."""


class CertificateError(Exception):
    """A folder of certificates is of no use; the text says why."""


class HungUpError(OSError):
    """A host ended the connection after the handshake."""


class Files(NamedTuple):
    """What is in a folder."""

    ca: bytes
    certificate: bytes
    key: bytes


class Facts(NamedTuple):
    """What a certificate says."""

    names: tuple[str, ...]
    """Host names and addresses."""
    expires: float
    """Unix seconds."""


def read(folder: Path) -> Files:
    """The files as they are now. Raises CertificateError where one can't be read."""
    try:
        return Files(*(_bytes(folder / name) for name in NAMES))
    except OSError as error:
        raise CertificateError(
            f"{error.filename}: {error.strerror}; expected {CA_FILE}, {CERTIFICATE_FILE} and"
            f" {KEY_FILE} in {folder}, as `gradwire certs issue` writes them"
        ) from error


def _bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(LONGEST_FILE)


def inspect(files: Files) -> Facts:
    """What they say. Raises CertificateError unless they hold together, now, for both roles."""
    here = _context(ssl.PROTOCOL_TLS_CLIENT, files)
    here.check_hostname = False
    there = _context(ssl.PROTOCOL_TLS_SERVER, files)
    there.verify_mode = ssl.CERT_REQUIRED
    forth, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    caller = here.wrap_bio(back, forth)
    called = there.wrap_bio(forth, back, server_side=True)
    try:
        for _ in range(_ROUNDS):
            for side in (caller, called):
                with suppress(ssl.SSLWantReadError):
                    side.do_handshake()
    except ssl.SSLCertVerificationError as error:
        raise CertificateError(_own_fault(error)) from error
    except ssl.SSLError as error:
        raise CertificateError(f"{CERTIFICATE_FILE}: {error.reason or error}") from error
    return _facts(called.getpeercert())


def _own_fault(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code == _TOO_LATE:
        return f"{CERTIFICATE_FILE} has expired, or {CA_FILE} has: `gradwire certs renew`"
    if error.verify_code == _TOO_EARLY:
        return f"{CERTIFICATE_FILE} is not valid yet: compare the clocks of hosts"
    return (
        f"expected {CERTIFICATE_FILE} to be issued by the CA in {CA_FILE}, for clients and"
        f" servers; {error.verify_message}"
    )


def _facts(certificate: Mapping[str, Any] | None) -> Facts:
    if not certificate:
        return Facts((), 0.0)
    names = tuple(_plain(name) for _, name in certificate.get("subjectAltName", ()))
    return Facts(names, float(ssl.cert_time_to_seconds(certificate["notAfter"])))


def _context(protocol: int, files: Files) -> ssl.SSLContext:
    """Raises CertificateError where the files can't be read, or are of different keys."""
    context = ssl.SSLContext(protocol)
    try:
        context.load_verify_locations(cadata=files.ca.decode("ascii"))
    except (ValueError, ssl.SSLError) as error:
        raise CertificateError(f"{CA_FILE} holds no certificate, or only a part") from error
    with ExitStack() as stack:
        # OpenSSL reads files only, and those in the folder may be others by now.
        certificate, key = (_in_memory(stack, data) for data in files[1:])
        try:
            context.load_cert_chain(certificate, key, password=_no_password)
        except (ValueError, ssl.SSLError) as error:
            mismatch = isinstance(error, ssl.SSLError) and "MISMATCH" in (error.reason or "")
            raise CertificateError(
                f"{KEY_FILE} does not belong to {CERTIFICATE_FILE}"
                if mismatch
                else f"{CERTIFICATE_FILE} or {KEY_FILE} is not in PEM, only a part, or locked"
                " with a password"
            ) from error
    return context


def _in_memory(stack: ExitStack, data: bytes) -> str:
    file = os.memfd_create("gradwire")
    stack.callback(os.close, file)
    os.write(file, data)
    return f"/proc/self/fd/{file}"


def _no_password() -> str:
    # Else OpenSSL asks on the terminal.
    raise ValueError("locked with a password")


# -- names


def covers(names: Iterable[str], host: str) -> bool:
    """Whether a certificate with these names is this host's."""
    wanted = _plain(host)
    accepted = {wanted}
    if not _is_address(wanted) and "." in wanted:
        accepted.add("*." + wanted.partition(".")[2])
    return any(_plain(name) in accepted for name in names)


def _plain(name: str) -> str:
    """One spelling of an address or a name."""
    if _is_address(name):
        return str(ipaddress.ip_address(name))
    return name.lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


# -- why a connection does not come about


def explain(
    host: str, files: Files | None, knock: Callable[[ssl.SSLContext], Mapping[str, Any]]
) -> str:
    """What is wrong between us, with or without certificates, and a host that did not take our
    call; nothing where that isn't it. gRPC does not tell.

    `knock` shakes hands with the host and returns what `hear` does. It raises OSError.
    """
    try:
        knock(_calling(files))
    except HungUpError:
        return _own_mistake(files) if files else _WITHOUT
    except ssl.SSLCertVerificationError as error:
        return _distrust(host, files, error, knock)
    except ssl.SSLError as error:
        return _refusal(error.reason or "", files)
    except (OSError, CertificateError):
        return ""
    # It speaks TLS with anybody, and we do not.
    return "" if files else _WITHOUT


def hear(shaken: ssl.SSLSocket) -> Mapping[str, Any]:
    """What a host's certificate says, where the host goes on after the handshake.

    It looks at our certificate only after we have taken the handshake for done. Raises
    HungUpError where that was the end.
    """
    certificate: Mapping[str, Any] = shaken.getpeercert() or {}
    try:
        said = shaken.recv(1)
    except ConnectionError:
        said = b""
    if not said:
        raise HungUpError
    return certificate


def _own_mistake(files: Files) -> str:
    try:
        facts = inspect(files)
    except CertificateError as error:
        return f"it refused our certificate: {error}"
    return (
        f"it refused our certificate, for {', '.join(facts.names)}: expected one from the CA in"
        f" its {CA_FILE}; one CA for all nodes"
    )


_WITHOUT = (
    "expected a host without TLS, found one that takes only callers with a certificate: start"
    f" daemons with --certs, and name the folder in {VARIABLE}"
)


def _calling(files: Files | None) -> ssl.SSLContext:
    if files is not None:
        context = _context(ssl.PROTOCOL_TLS_CLIENT, files)
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


def _distrust(
    host: str,
    files: Files | None,
    error: ssl.SSLCertVerificationError,
    knock: Callable[[ssl.SSLContext], Mapping[str, Any]],
) -> str:
    """We do not take its certificate."""
    if error.verify_code in _NAME_MISMATCH:
        context = _calling(files)
        context.check_hostname = False
        found = "other names"
        with suppress(OSError):
            found = ", ".join(_facts(knock(context)).names) or "no names"
        return (
            f"expected a certificate for {host}, found one for {found}: issue it with"
            f" --host {host}, or advertise an address that it names"
        )
    if error.verify_code == _TOO_LATE:
        return f"the certificate of {host} has expired: `gradwire certs renew` there"
    if error.verify_code == _TOO_EARLY:
        return f"the certificate of {host} is not valid yet: compare the clocks of the hosts"
    return (
        f"expected a certificate for {host} from the CA in our {CA_FILE}, found one that"
        f" another CA has issued ({error.verify_message}): one CA for all nodes"
    )


def _refusal(reason: str, files: Files | None) -> str:
    """It does not take ours, or speaks no TLS."""
    if any(each in reason for each in _NO_TLS):
        without = "expected a host with TLS, found one that speaks plain text: start it with"
        return f"{without} --certs, too" if files else ""
    if files is None:
        return _WITHOUT
    return _own_mistake(files) if "UNKNOWN_CA" in reason or "CERTIFICATE" in reason else ""
