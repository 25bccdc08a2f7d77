"""The manifests for Kubernetes: their shape, and that they fit the code. None ever ran."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import kubernetes_validate
import pytest
import yaml

from gradwire_proto.addresses import split_address
from gradwire_proto.certificates import NAMES, covers
from gradwire_server.settings import Settings, load

if TYPE_CHECKING:
    from collections.abc import Iterator

Resource: TypeAlias = dict[str, Any]

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
VERSIONS = ("1.29", "1.37")
"""The oldest that has sidecars, and the newest whose schemas there are."""

# What is to be applied, and the kinds in it that are not Kubernetes' own: there are no schemas
# of these, so only what `SHAPES` says of them is checked.
WHOLES = ("overlays/daemonset", "overlays/sidecar", "examples/pytorchjob", "examples/trainjob")
SHAPES = {
    "Issuer": ("cert-manager.io/v1", ()),
    "Certificate": ("cert-manager.io/v1", ("secretName", "issuerRef.name")),
    "ServiceMonitor": ("monitoring.coreos.com/v1", ("selector.matchLabels", "endpoints")),
    "PrometheusRule": ("monitoring.coreos.com/v1", ("groups",)),
    "PyTorchJob": (
        "kubeflow.org/v1",
        ("pytorchReplicaSpecs.Master.template", "pytorchReplicaSpecs.Worker.template"),
    ),
    "TrainJob": ("trainer.kubeflow.org/v1alpha1", ("runtimeRef.name", "trainer.numNodes")),
    "TrainingRuntime": (
        "trainer.kubeflow.org/v1alpha1",
        ("mlPolicy.torch", "template.spec.replicatedJobs"),
    ),
}

needs_kubectl = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="kubectl is not on this machine"
)


def build(folder: Path) -> list[Resource]:
    made = subprocess.run(
        ["kubectl", "kustomize", folder], capture_output=True, text=True, timeout=60
    )
    assert made.returncode == 0, made.stderr
    assert not made.stderr
    return list(yaml.safe_load_all(made.stdout))


@cache
def whole(name: str) -> list[Resource]:
    return build(KUBERNETES / name)


def named(resources: list[Resource], kind: str, name: str = "gradwire") -> Resource:
    (found,) = (
        each for each in resources if (each["kind"], each["metadata"]["name"]) == (kind, name)
    )
    return found


def pods(resources: list[Resource]) -> Iterator[Resource]:
    """Their templates, wherever a kind of resource has them."""
    for each in resources:
        match each:
            case {"kind": "DaemonSet", "spec": {"template": template}}:
                yield template
            case {"kind": "PyTorchJob", "spec": {"pytorchReplicaSpecs": replicas}}:
                yield from (replica["template"] for replica in replicas.values())
            case {"kind": "TrainingRuntime", "spec": {"template": {"spec": jobs}}}:
                for job in jobs["replicatedJobs"]:
                    yield job["template"]["spec"]["template"]
            case _:
                pass


def containers(pod: Resource) -> list[Resource]:
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


def daemon_of(pod: Resource) -> Resource:
    (found,) = (each for each in containers(pod) if each["name"] == "daemon")
    return found


def check(resource: Resource) -> None:
    """Against Kubernetes' schema, which knows every key, or what we know of other kinds."""
    if resource["kind"] not in SHAPES:
        for version in VERSIONS:
            kubernetes_validate.validate(resource, version, strict=True)
        return
    api, required = SHAPES[resource["kind"]]
    assert resource["apiVersion"] == api
    assert resource["metadata"]["name"]
    for path in required:
        value = resource["spec"]
        for key in path.split("."):
            value = value[key]
        assert value not in (None, "", [], {}), path


@needs_kubectl
@pytest.mark.parametrize("name", WHOLES)
def test_what_is_applied_has_the_shape_that_kubernetes_expects(name: str) -> None:
    for resource in whole(name):
        check(resource)
    for pod in pods(whole(name)):
        metadata = {"name": "made-by-its-owner", **pod["metadata"]}
        check({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod["spec"]})


def test_so_have_the_files_by_themselves() -> None:
    checked = 0
    for path in sorted(KUBERNETES.rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            # A patch is only a part, and kustomize checks its own files.
            if path.name not in ("patch.yaml", "kustomization.yaml") and "kind" in document:
                check(document)
                checked += 1
    assert checked > len(SHAPES)


def test_a_key_that_kubernetes_does_not_know_is_found() -> None:
    with pytest.raises(kubernetes_validate.ValidationError):
        check({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}, "spek": {}})


# -- what the daemons are told


def environment(container: Resource, known: dict[str, str]) -> dict[str, str]:
    """The container's variables, as Kubernetes makes them of others."""
    found = dict(known)
    for each in container["env"]:
        if "value" in each:
            found[each["name"]] = re.sub(r"\$\((\w+)\)", lambda m: found[m[1]], each["value"])
    return {name: value for name, value in found.items() if name.startswith("GRADWIRE_")}


def settings_of(pod: Resource, known: dict[str, str], shm: Path) -> Settings:
    """What the daemon makes of them; there is no such folder for arenas here."""
    variables = environment(daemon_of(pod), known)
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("GRADWIRE_")]:
            patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        return load({"shm_dir": shm})


def port_of(address: str) -> int:
    return split_address(address)[1]


@needs_kubectl
def test_a_daemon_of_a_node_tells_an_address_that_its_certificate_names(tmp_path: Path) -> None:
    resources = whole("overlays/daemonset")
    names = named(resources, "Certificate")["spec"]["ipAddresses"]
    (pod,) = pods(resources)
    for address in names:
        settings = settings_of(pod, {"HOST_IP": address}, tmp_path)
        assert settings.advertise == address
    assert not covers(names, "192.0.2.99")


@needs_kubectl
def test_so_does_one_beside_its_ranks(tmp_path: Path) -> None:
    resources = whole("overlays/sidecar")
    certificate, job = named(resources, "Certificate"), "gradwire-example-worker-0"
    namespace = certificate["metadata"]["namespace"]
    for pod in pods(resources):
        known = {"POD_NAME": job, "POD_NAMESPACE": namespace}
        settings = settings_of(pod, known, tmp_path)
        assert settings.advertise.startswith(f"{job}.{namespace}.")
        assert covers(certificate["spec"]["dnsNames"], settings.advertise)


@needs_kubectl
@pytest.mark.parametrize("name", ["overlays/daemonset", "overlays/sidecar"])
def test_ports_folders_and_secrets_are_those_that_the_daemon_uses(
    name: str, tmp_path: Path
) -> None:
    resources = whole(name)
    usual = {name: each.default for name, each in Settings.model_fields.items()}
    known = {"HOST_IP": "192.0.2.11", "POD_NAME": "pod", "POD_NAMESPACE": "namespace"}
    for pod in pods(resources):
        daemon = daemon_of(pod)
        settings = settings_of(pod, known, tmp_path)
        ports = {each["name"]: each["containerPort"] for each in daemon["ports"]}
        assert port_of(settings.listen) == port_of(usual["listen"]) == ports["node"]
        metrics = port_of(settings.metrics_listen)
        assert metrics == port_of(usual["metrics_listen"]) == ports["metrics"]
        assert not settings.insecure
        mounts = {each["mountPath"]: each for each in daemon["volumeMounts"]}
        assert str(settings.socket.parent) in mounts
        assert environment(daemon, known)["GRADWIRE_SHM_DIR"] in mounts
        certs = mounts[str(settings.certs)]
        assert "subPath" not in certs
        (volume,) = (each for each in pod["spec"]["volumes"] if each["name"] == certs["name"])
        secret = named(resources, "Certificate")["spec"]["secretName"]
        # cert-manager's names of the files are ours.
        assert (volume["secret"]["secretName"], NAMES) == (
            secret,
            ("ca.crt", "tls.crt", "tls.key"),
        )


@needs_kubectl
@pytest.mark.parametrize("name", ["overlays/daemonset", "overlays/sidecar"])
def test_service_policies_and_monitor_mean_the_daemons(name: str) -> None:
    resources = whole(name)
    service = named(resources, "Service")
    (monitored,) = service["spec"]["ports"]
    policy = named(resources, "NetworkPolicy")["spec"]
    opened = [port["port"] for rule in policy["ingress"] for port in rule["ports"]]
    for pod in pods(resources):
        labels = pod["metadata"]["labels"].items()
        assert service["spec"]["selector"].items() <= labels
        assert policy["podSelector"]["matchLabels"].items() <= labels
        assert sorted(opened) == sorted(
            each["containerPort"] for each in daemon_of(pod)["ports"]
        )
    monitor = named(resources, "ServiceMonitor")["spec"]
    assert monitor["endpoints"][0]["port"] == monitored["name"]
    label = service["metadata"]["labels"][monitor["jobLabel"]]
    # As the alert rules call the job.
    assert f'job="{label}"' in (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text()


@needs_kubectl
def test_in_the_nodes_own_network_a_daemon_listens_on_one_address(tmp_path: Path) -> None:
    lines = {
        "resources": [os.path.relpath(KUBERNETES / "overlays/daemonset", tmp_path)],
        "components": [os.path.relpath(KUBERNETES / "components/host-network", tmp_path)],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(lines))
    resources = build(tmp_path)
    for resource in resources:
        check(resource)
    (pod,) = pods(resources)
    settings = settings_of(pod, {"HOST_IP": "192.0.2.11"}, tmp_path)
    assert pod["spec"]["hostNetwork"]
    assert (settings.listen, settings.metrics_listen) == ("192.0.2.11:50700", "192.0.2.11:9470")


# -- what pods may do


def breaches(pod: Resource) -> set[str]:
    """What is against Kubernetes' level `restricted`."""
    spec = pod["spec"]
    found = {"hostPath" for volume in spec["volumes"] if "hostPath" in volume}
    found |= {"hostNetwork" for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)}
    if spec["securityContext"]["seccompProfile"]["type"] != "RuntimeDefault":
        found.add("seccomp")
    for each in containers(pod):
        context = {**spec["securityContext"], **each["securityContext"]}
        if any("hostPort" in port for port in each.get("ports", ())):
            found.add("hostPort")
        if not context["runAsNonRoot"] or context["runAsUser"] == 0:
            found.add(f"{each['name']}: root")
        if context["allowPrivilegeEscalation"] or context["capabilities"]["drop"] != ["ALL"]:
            found.add(f"{each['name']}: privileges")
        if context["capabilities"].get("add"):
            found.add(f"{each['name']}: capabilities")
    return found


EXPECTED = {
    "overlays/daemonset": {"hostPath", "hostPort", "folders: root", "folders: capabilities"},
    "overlays/sidecar": set(),
    "examples/pytorchjob": {"hostPath"},
    "examples/trainjob": {"hostPath"},
}


@needs_kubectl
@pytest.mark.parametrize("name", WHOLES)
def test_pods_keep_to_the_level_of_their_namespace_and_break_no_more_than_is_said(
    name: str,
) -> None:
    (namespace,) = (each for each in whole(name) if each["kind"] == "Namespace")
    level = namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    assert level == ("privileged" if EXPECTED[name] else "restricted")
    templates = list(pods(whole(name)))
    assert templates
    for pod in templates:
        assert breaches(pod) == EXPECTED[name]
        # A service called gradwire would become variables that begin with GRADWIRE_.
        assert not pod["spec"]["enableServiceLinks"]
        assert not pod["spec"]["automountServiceAccountToken"]
        for each in containers(pod):
            assert each["securityContext"]["readOnlyRootFilesystem"]
            assert "memory" in each["resources"]["limits"]


@needs_kubectl
@pytest.mark.parametrize("name", ["overlays/sidecar", *WHOLES[2:]])
def test_a_rank_sees_its_daemons_folders_where_the_daemon_has_them(name: str) -> None:
    for pod in pods(whole(name)):
        (rank,) = pod["spec"]["containers"]
        mounts = {each["mountPath"] for each in rank["volumeMounts"]}
        assert {"/run/gradwire", "/dev/shm/gradwire"} <= mounts  # noqa: S108
        assert 10001 in pod["spec"]["securityContext"]["supplementalGroups"]
        assert environment(rank, {})["GRADWIRE_DAEMON"] == "unix:/run/gradwire/gradwire.sock"


@needs_kubectl
def test_arenas_in_memory_leave_a_sidecar_room_below_its_limit() -> None:
    for pod in pods(whole("overlays/sidecar")):
        (arenas,) = (each for each in pod["spec"]["volumes"] if each["name"] == "arenas")
        assert arenas["emptyDir"]["medium"] == "Memory"
        size, limit = arenas["emptyDir"]["sizeLimit"], daemon_of(pod)["resources"]["limits"]
        assert int(size.removesuffix("Gi")) < int(limit["memory"].removesuffix("Gi"))


# -- one source each


def test_the_example_is_that_of_the_other_ways_to_deploy() -> None:
    """`make rules` copies it."""
    copy = KUBERNETES / "job" / "common" / "train.py"
    assert copy.read_text() == (ROOT / "deploy" / "examples" / "train.py").read_text()


def test_the_alert_rules_are_those_of_prometheus() -> None:
    resource = KUBERNETES / "components" / "monitoring" / "prometheusrule.yaml"
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())
    assert yaml.safe_load(resource.read_text())["spec"] == rules
    before = resource.read_text()
    # And what `make rules` would write.
    program = "import write_rules; print(write_rules.text(), end='')"
    made = subprocess.run(
        [sys.executable, "-c", program], cwd=KUBERNETES, capture_output=True, text=True
    )
    assert made.stdout == before


def test_certificates_are_renewed_before_the_alert_says_that_they_expire() -> None:
    rules = (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text()
    days = re.search(r"gradwire_certificate_expiry_\w+\) - time\(\) < (\d+) \* 86400", rules)
    assert days is not None
    for path in ("overlays/daemonset/nodes.yaml", "overlays/sidecar/certificate.yaml"):
        certificate, *_ = yaml.safe_load_all((KUBERNETES / path).read_text())
        hours = int(certificate["spec"]["renewBefore"].removesuffix("h"))
        assert int(days[1]) * 24 < hours
        assert {"server auth", "client auth"} <= set(certificate["spec"]["usages"])


def test_the_image_is_the_one_that_compose_builds() -> None:
    compose = (ROOT / "docker-compose.yml").read_text()
    images = {
        image
        for path in KUBERNETES.rglob("*.yaml")
        for image in re.findall(r"image: (\S+)", path.read_text())
    }
    (image,) = images
    assert f"image: {image}" in compose or f"image: &image {image}" in compose


@pytest.mark.parametrize("folder", ["kubernetes", "systemd"])
def test_variables_are_those_of_the_readmes_table(folder: str) -> None:
    table = re.findall(r"^\| `(GRADWIRE_\w+)` ", (ROOT / "README.md").read_text(), re.MULTILINE)
    used = {
        name
        for path in (ROOT / "deploy" / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
        for name in re.findall(r"GRADWIRE_[A-Z_]*[A-Z]", path.read_text())
    }
    assert used
    assert used <= set(table)
