"""A certificate authority for one cluster; keys and certificates are PEM bytes."""

from __future__ import annotations

import datetime as dt
import ipaddress
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes

    from gradwire_proto.certificates import Files

CA_DAYS = 3650
CA_NAME = "Gradwire CA"

BEFORE = dt.timedelta(minutes=5)
"""Certificates are valid a little earlier: clocks of hosts differ."""


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its key."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Description:
    """What a certificate says."""

    subject: str
    names: tuple[str, ...]
    expires: dt.datetime
    issuer: str
    findings: list[str]
    """What is wrong with its dates."""


class Authority:
    """Signs with one key."""

    def __init__(self, certificate: bytes, key: bytes) -> None:
        """Raises ValueError where they can't be read, or don't belong together."""
        self.certificate = certificate
        self.key = key
        self._certificate = x509.load_pem_x509_certificate(certificate)
        self._key = _signing_key(key)
        if _public(self._key.public_key()) != _public(self._certificate.public_key()):
            raise ValueError("ca.key does not belong to ca.crt")

    @classmethod
    def create(cls) -> Authority:
        """A new one."""
        key = ec.generate_private_key(ec.SECP256R1())
        # Two of them must not look the same.
        common = f"{CA_NAME} {secrets.token_hex(4)}"
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
        builder = _builder(name, name, key.public_key(), CA_DAYS)
        for extension, critical in (
            (x509.BasicConstraints(ca=True, path_length=0), True),
            (_usage(signs_certificates=True), True),
            (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
        ):
            builder = builder.add_extension(extension, critical)
        signed = builder.sign(key, hashes.SHA256())
        return cls(signed.public_bytes(Encoding.PEM), _private(key))

    def issue(self, name: str, hosts: Sequence[str], days: float) -> Issued:
        """For these names and addresses; less than a day is for trials, below 0 has expired.

        Raises ValueError for a host that is neither.
        """
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = x509.SubjectAlternativeName(list(map(_general, dict.fromkeys(hosts))))
        return self._sign(subject, names, days, ec.generate_private_key(ec.SECP256R1()))

    def renew(self, certificate: bytes, days: float, key: bytes | None) -> Issued:
        """The same names; the same key where it is given. Raises ValueError."""
        before = x509.load_pem_x509_certificate(certificate)
        if not _names(before):
            raise ValueError(
                "tls.crt names no host: `gradwire certs issue` makes one that does"
            )
        names = before.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        new = ec.generate_private_key(ec.SECP256R1()) if key is None else _signing_key(key)
        return self._sign(before.subject, names, days, new)

    def _sign(
        self,
        subject: x509.Name,
        names: x509.SubjectAlternativeName,
        days: float,
        key: ec.EllipticCurvePrivateKey,
    ) -> Issued:
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        # None outlives its CA: nobody would take it.
        last = self._certificate.not_valid_after_utc - dt.datetime.now(dt.UTC)
        days = min(days, last / dt.timedelta(days=1))
        builder = _builder(subject, self._certificate.subject, key.public_key(), days)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        for extension, critical in (
            (names, False),
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (_usage(signs_certificates=False), True),
            (x509.ExtendedKeyUsage(both), False),
            (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
            (authority, False),
        ):
            builder = builder.add_extension(extension, critical)
        signed = builder.sign(self._key, hashes.SHA256())
        return Issued(signed.public_bytes(Encoding.PEM), _private(key))

    # -- reading

    @staticmethod
    def describe(certificate: bytes) -> Description:
        """What a certificate says. Raises ValueError."""
        read = x509.load_pem_x509_certificate(certificate)
        now, findings = dt.datetime.now(dt.UTC), []
        if read.not_valid_after_utc < now:
            findings.append(f"it has expired, on {read.not_valid_after_utc:%Y-%m-%d %H:%M} UTC")
        if read.not_valid_before_utc > now:
            findings.append(f"it is valid from {read.not_valid_before_utc:%Y-%m-%d %H:%M} UTC")
        return Description(
            read.subject.rfc4514_string(),
            tuple(_names(read)),
            read.not_valid_after_utc,
            read.issuer.rfc4514_string(),
            findings,
        )

    @staticmethod
    def mistakes(files: Files) -> list[str]:
        """What does not fit together. Raises ValueError where a file can't be read."""
        # While a CA takes the place of another, all nodes trust both.
        authorities = x509.load_pem_x509_certificates(files.ca)
        certificate = x509.load_pem_x509_certificate(files.certificate)
        found = []
        if _public(_key(files.key).public_key()) != _public(certificate.public_key()):
            found.append("tls.key does not belong to tls.crt")
        signers = [each for each in authorities if _has_issued(each, certificate)]
        if not signers:
            known = ", ".join(each.subject.rfc4514_string() for each in authorities)
            found.append(
                f"expected it to be issued by the CA in ca.crt ({known}),"
                f" found that another key has signed it ({certificate.issuer.rfc4514_string()})"
            )
        if any(each.not_valid_after_utc < dt.datetime.now(dt.UTC) for each in signers):
            found.append("the CA in ca.crt has expired")
        return found


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    end = now + dt.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, end) - BEFORE)
        .not_valid_after(end)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general(host: str) -> x509.GeneralName:
    """Raises ValueError where it is neither a name nor an address."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not host or not all(host.removeprefix("*.").split(".")) or set(host) & set(":/ "):
        raise ValueError(f"--host {host}: expected a name or an address, without a port")
    return x509.DNSName(host)


def _names(certificate: x509.Certificate) -> Sequence[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    names = found.value
    addresses = map(str, names.get_values_for_type(x509.IPAddress))
    return [*names.get_values_for_type(x509.DNSName), *addresses]


def _has_issued(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _key(key: bytes) -> PrivateKeyTypes:
    try:
        return load_pem_private_key(key, None)
    except TypeError as error:
        raise ValueError("expected a key without a password") from error


def _signing_key(key: bytes) -> ec.EllipticCurvePrivateKey:
    read = _key(key)
    if not isinstance(read, ec.EllipticCurvePrivateKey):
        raise ValueError("expected a key on an elliptic curve, as `gradwire certs` makes them")
    return read


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _public(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
