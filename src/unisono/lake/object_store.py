"""Options of delta-rs for an object store: bounds on trying again, and the keys of an AWS profile.

Delta-rs finds credentials in its options, in environment variables, and where a cloud hands them to its machines and
containers. It does not read AWS profiles, so their keys are read here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from unisono.lake.errors import LakeUnusable

RETRIES: Final[Mapping[str, str]] = {
    "connect_timeout": "5s",
    "timeout": "30s",
    "max_retries": "8",
    "retry_timeout": "60s",
}
"""A store that is busy or away is tried again for about a minute; then the job or the page fails and says why."""

_PREFIX: Final = "aws_"
"""Options of S3 may leave it out."""
_KEYS: Final = ("aws_access_key_id", "aws_secret_access_key")
_OWN_CHAIN: Final = (
    "aws_web_identity_token_file",
    "aws_container_credentials_relative_uri",
    "aws_skip_signature",
)


def with_defaults(location: str, options: Mapping[str, str]) -> dict[str, str]:
    """The options for the object store at a URL; those given win."""
    given = {name.lower(): value for name, value in options.items()}
    scheme = location.partition("://")[0].lower()
    profile = _profile(given) if scheme in ("s3", "s3a") else {}
    return {**RETRIES, **profile, **given}


def _profile(options: Mapping[str, str]) -> dict[str, str]:
    """The keys of the profile that AWS_PROFILE names, unless there are others."""
    name = os.environ.get("AWS_PROFILE")
    known = {key.lower() for key, value in os.environ.items() if value}
    known |= {key if key.startswith(_PREFIX) else f"{_PREFIX}{key}" for key in options}
    if not name or known & {*_KEYS, *_OWN_CHAIN}:
        return {}
    try:
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session
    except ImportError:
        raise LakeUnusable(
            f"AWS_PROFILE is {name}, and reading profiles needs botocore: `pip install botocore`, or set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from None
    try:
        session = Session(profile=name)
        credentials = session.get_credentials()
        found = credentials and credentials.get_frozen_credentials()
        region = session.get_config_variable("region")
    except BotoCoreError as error:
        raise LakeUnusable(f"AWS_PROFILE is {name}: {error}") from error
    if not found:
        raise LakeUnusable(f"the profile {name} that AWS_PROFILE names has no credentials")
    keys = {
        "aws_access_key_id": found.access_key,
        "aws_secret_access_key": found.secret_key,
        "aws_session_token": found.token,
        "aws_region": None if "aws_region" in known else region,
    }
    return {key: value for key, value in keys.items() if value}
