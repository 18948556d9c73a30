"""Names and texts that are secrets. A literal secret must not leave the machine or appear in text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel, SecretStr

from gc_assets.config.models import Config
from gc_assets.core.secret_names import SECRET_NAME, contains_literal_secret, is_secret_name
from gc_assets.lakes.kinds import config_models

SECRETS = [
    "token",
    "plan_key",
    "secret_access_key",
    "s3.secret-access-key",
    "s3.session-token",
    "adls.account-key",
    "adls.client-secret",
    "adls.connection-string",
    "adls.sas-token",
    "adls.sas-token.acc",
    "credential",
    "header.Authorization",
    "header.X-Api-Key",
    "header.Cookie",
    "header.X-Session",
    "fs.azure.account.key.acc.dfs.core.windows.net",
    "fs.azure.account.oauth2.client.secret.acc",
    "fs.azure.sas.container.acc.blob.core.windows.net",
    "fs.s3a.secret.key",
    "spark.ssl.keyPassword",
    "A_TOKEN",
    "DB_PASSWORD",
    "VAULT_SECRET_ID",
    "X-Amz-Signature",
    "sig",
    "pwd",
    "AccountKey",
    "basic-auth",
]
NO_SECRETS = [
    "type",
    "uri",
    "key-prefix",
    "s3.access-key-id",
    "s3.sse-kms-key-id",
    "client.role-session-name",
    "secret_variable",
    "token-refresh-enabled",
    "gcs.oauth2.token-expires-at",
    "oauth2-server-uri",
    "rest.sigv4-enabled",
    "rest.signing-region",
    "adls.blob-storage-authority",
    "header.Polaris-Realm",
    "header.X-Iceberg-Access-Delegation",
    "fs.s3a.aws.credentials.provider",
    "fs.azure.account.auth.type.acc.dfs.core.windows.net",
    "fs.azure.sas.token.provider.type",
    "hadoop.security.authentication",
    "hadoop.security.credential.provider.path",
    "google.cloud.auth.service.account.json.keyfile",
    "spark.kubernetes.authenticate.driver.serviceAccountName",
    "spark.sql.mapKeyDedupPolicy",
    "spark.ssl.keyStore",
    "ssh_public_keys[0]",
    "SSH_KEY_PATH",
    "sslkey",
    "max_keys",
]


@pytest.mark.parametrize("name", SECRETS)
def test_value_with_the_name_of_a_secret_is_a_secret(name: str) -> None:
    assert contains_literal_secret(f"lakes[0].catalog.{name}", "hunter2")
    assert SECRET_NAME.search(name) or "session" in name.lower()


@pytest.mark.parametrize("name", NO_SECRETS)
def test_value_with_a_related_name_is_no_secret(name: str) -> None:
    assert not contains_literal_secret(f"lakes[0].catalog.{name}", "hunter2")


@pytest.mark.parametrize(
    "value",
    [
        "postgresql://ana:hunter2@db/catalog",
        "jdbc:postgresql://ana:hunter2@db/catalog",
        "postgresql://ana:hunter2@${HOST}/catalog",
        "postgresql://db/catalog?user=ana&password=hunter2",
        "https://acc.blob.core.windows.net/?sv=1&sig=hunter2",
        "https://h/?access_token=hunter2&x=${X}",
        "https://b.s3.amazonaws.com/k?X-Amz-Signature=hunter2",
        "AccountKey=hunter2;AccountName=acc",
        "jdbc:sqlserver://db;user=ana;password=hunter2",
        "--conf spark.emr-serverless.driverEnv.LAKEFS_SECRET=hunter2",
    ],
)
def test_secret_inside_of_a_value_is_found(value: str) -> None:
    assert contains_literal_secret("lakes[0].catalog.uri", value)


@pytest.mark.parametrize("value", ["Bearer hunter2", "eyJhunter2.eyJhunter2.hunter2"])
def test_header_value_that_authenticates_is_a_secret(value: str) -> None:
    assert contains_literal_secret("lakes[0].catalog.header.X-Forward", value)


@pytest.mark.parametrize(
    "name, value",
    [
        ("catalog.header.Authorization", "Bearer ${TOKEN}"),
        ("catalog.credential", "id:${SECRET}"),
        ("cluster.spark_env_vars.A_TOKEN", "{{secrets/gc/lakefs}}"),
        ("catalog.uri", "postgresql://ana:${PASSWORD}@db/catalog"),
        ("catalog.uri", "postgresql://ana:{{secrets/gc/password}}@db/catalog"),
        ("catalog.uri", "postgresql://db/catalog?user=ana&password=${PASSWORD}"),
        ("catalog.uri", "postgresql://db/catalog?sslmode=verify-full&sslkey=/certs/key.pem"),
        ("parameters", "--conf spark.emr-serverless.driverEnv.LAKEFS_SECRET=EMR.secret@arn:aws:secretsmanager:x"),
        ("conf.fs.s3a.encryption.key", "arn:aws:kms:eu-central-1:1:key/2"),
        ("conf.spark.security.credentials.hive", "false"),
        ("storages[0].protect[0]", "events/token=abc/*"),
        ("catalog.token", ""),
    ],
)
def test_reference_or_plain_value_is_no_literal_secret(name: str, value: str) -> None:
    assert not contains_literal_secret(name, value)


def test_fields_of_the_configuration_are_recognized() -> None:
    """An access key id is hidden in output, but its literal value may be sent to a remote job."""
    fields = dict(_fields([Config, *config_models().values()]))
    unrecognized = {name for name, is_secret in fields.items() if is_secret and not is_secret_name(name)}
    assert unrecognized <= {"access_key_id", "catalog", "url", "headers"}
    assert {name for name, is_secret in fields.items() if not is_secret and is_secret_name(f"items[0].{name}")} == set()


def _fields(pending: list[Any]) -> Iterator[tuple[str, bool]]:
    seen = set[Any]()
    while pending:
        annotation = pending.pop()
        pending += get_args(annotation)
        if isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation not in seen:
            seen.add(annotation)
            for name, field in annotation.model_fields.items():
                pending.append(field.annotation)
                yield name, "SecretStr" in repr(field.annotation) or field.annotation is SecretStr
