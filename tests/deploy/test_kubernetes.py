"""The manifests of deploy/kubernetes fit the program and each other."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from tests.deploy.test_deploy import DEPLOY, db_commands, image, settings_of

# Kubernetes


def manifests() -> list[Manifest]:
    found: list[Manifest] = []
    for file in sorted(KUBERNETES.glob("*.yaml")):
        if file.name != "kustomization.yaml":
            found += yaml.safe_load_all(file.read_text(encoding="utf-8"))
    return found


def of_kind(*kinds: str) -> Iterator[Manifest]:
    return (manifest for manifest in manifests() if manifest["kind"] in kinds)


def pods() -> Iterator[tuple[Manifest, Manifest]]:
    """Every manifest that makes pods, and the form of its pods."""
    for manifest in of_kind("Deployment", "StatefulSet", "Job"):
        yield manifest, manifest["spec"]["template"]


def environment_of(container: Manifest) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "from-elsewhere") for entry in container["env"]}


def test_every_manifest_is_of_a_known_kind_and_has_a_place() -> None:
    seen = set()
    for manifest in manifests():
        assert API_VERSIONS[manifest["kind"]] == manifest["apiVersion"]
        metadata = manifest["metadata"]
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", metadata["name"])
        assert manifest["kind"] == "Namespace" or metadata["namespace"] == "unisono"
        assert (manifest["kind"], metadata["name"]) not in seen
        seen.add((manifest["kind"], metadata["name"]))


def test_the_kustomization_has_every_file_but_the_example() -> None:
    kustomization = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text(encoding="utf-8"))
    files = {file.name for file in KUBERNETES.glob("*.yaml")}
    assert set(kustomization["resources"]) == files - {"kustomization.yaml", "secrets.example.yaml"}


def test_two_nodes_run_with_settings_the_program_knows() -> None:
    (deployment,) = of_kind("Deployment")
    assert deployment["spec"]["replicas"] == 2
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    settings = settings_of(container["args"], image()[0] | _settings_only(environment_of(container)))
    assert settings.store == "postgresql://unisono_node@postgres:5432/unisono"
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"sync": settings.port, "admin": settings.admin_port}
    for probe in ("readinessProbe", "livenessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["port"] == "admin"
        assert asked["path"] in {"/readyz", "/healthz"}
    grace = deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > 2 * settings.drain_timeout_s + settings.close_grace_s
    assert settings.data in {mount["mountPath"] for mount in container["volumeMounts"]}


def test_the_migration_is_of_the_same_image() -> None:
    (job,) = of_kind("Job")
    (deployment,) = of_kind("Deployment")
    (migrating,) = job["spec"]["template"]["spec"]["containers"]
    (serving,) = deployment["spec"]["template"]["spec"]["containers"]
    assert migrating["image"] == serving["image"]
    assert job["metadata"]["name"].endswith(migrating["image"].partition(":")[2].replace(".", "-"))
    assert [command[2] for command in db_commands(migrating["args"][0])] == ["init", "migrate"]


def _settings_only(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith("UNISONO_")}


def test_selectors_ports_volumes_and_secrets_lead_somewhere() -> None:
    (secret,) = of_kind("Secret")
    config_maps = {manifest["metadata"]["name"] for manifest in of_kind("ConfigMap")}
    labels = []
    for manifest, template in pods():
        labels.append((template["metadata"]["labels"], template["spec"]["containers"]))
        if manifest["kind"] != "Job":
            assert (
                manifest["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
            )
        volumes = {volume["name"] for volume in template["spec"].get("volumes", ())}
        volumes |= {claim["metadata"]["name"] for claim in manifest["spec"].get("volumeClaimTemplates", ())}
        for volume in template["spec"].get("volumes", ()):
            assert volume.get("configMap", {}).get("name", "postgres-roles") in config_maps
            for item in volume.get("secret", {}).get("items", ()):
                assert item["key"] in secret["stringData"]
        for container in template["spec"]["containers"]:
            assert {mount["name"] for mount in container.get("volumeMounts", ())} <= volumes
            for entry in container["env"]:
                reference = entry.get("valueFrom", {}).get("secretKeyRef")
                if reference is not None:
                    assert reference["name"] == secret["metadata"]["name"]
                    assert reference["key"] in secret["stringData"]
    for service in of_kind("Service"):
        selected = [
            found for labelled, found in labels if service["spec"]["selector"].items() <= labelled.items()
        ]
        names = {port["name"] for containers in selected for found in containers for port in found["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= names


def test_the_roles_are_made_the_same_way_everywhere() -> None:
    (config_map,) = of_kind("ConfigMap")
    assert config_map["data"]["roles.sh"] == (DEPLOY / "roles.sh").read_text(encoding="utf-8")


def test_kubectl_reads_the_manifests() -> None:
    if shutil.which("kubectl") is None:
        return  # the checks above stand alone; kubectl adds its own opinion where it is installed
    outcome = subprocess.run(["kubectl", "kustomize", str(KUBERNETES)], capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.count("kind: Service\n") == 3


# systemd


KUBERNETES = DEPLOY / "kubernetes"

API_VERSIONS = {
    "ConfigMap": "v1",
    "Deployment": "apps/v1",
    "Job": "batch/v1",
    "Namespace": "v1",
    "PodDisruptionBudget": "policy/v1",
    "Secret": "v1",
    "Service": "v1",
    "StatefulSet": "apps/v1",
}

Manifest = dict[str, Any]
