//! The table of all setting names, ours and the incumbent's (docs/ISTIO.md, section 5), with their meaning, and
//! the treatment of unsupported ones.

use super::environment::SERVICE_ACCOUNT;
use super::reader::{InvalidSetting, SettingsReader};
use gybe_plugin::names::nearest_of;
use gybe_plugin::pod::parse_bool;

/// A setting's name and how it is supported.
#[derive(Debug, Clone, Copy)]
pub struct SettingName {
    /// The variable, or the ConfigMap's key.
    pub name: &'static str,
    /// The default.
    pub default: &'static str,
    /// Its meaning, or the reason why it is not supported.
    pub meaning: &'static str,
    pub support: Support,
}

/// How a setting is supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// It has its effect.
    Honoured,
    /// It has its effect in ambient mode; otherwise it is accepted with a note.
    Ambient,
    RefusedIfTrue,
    /// Accepted with a note, without effect.
    Ignored,
}

const fn honoured(name: &'static str, default: &'static str, meaning: &'static str) -> SettingName {
    SettingName { name, default, meaning, support: Support::Honoured }
}

const fn ambient(name: &'static str, default: &'static str, meaning: &'static str) -> SettingName {
    SettingName { name, default, meaning, support: Support::Ambient }
}

const fn other(support: Support, name: &'static str, meaning: &'static str) -> SettingName {
    SettingName { name, default: "", meaning, support }
}

/// Keys of the ConfigMap. The agent applies a change without a restart.
pub const KEYS: [SettingName; 30] = [
    honoured(
        "mode",
        "install",
        "`install`, or `leave`: removes the entry, and the programs when no sandbox needs them",
    ),
    honoured(
        "shape",
        "auto",
        "`auto`, `chained`, `dropin` or `standalone`: where the entry is written; `dropin` needs containerd 2.1 or CRI-O 1.34; `auto` is `dropin` where the node allows it and otherwise `chained` ([AGENT.md](AGENT.md#3-status)), and `chained` with `conf_name`, `repair: delete` and `repair: label`",
    ),
    honoured(
        "conf_name",
        "",
        "the conf file to change (chained) or to write (standalone), instead of the one that the runtime uses",
    ),
    honoured(
        "exclude_namespaces",
        "the agent's own, kube-system, istiod's",
        "comma-separated list: pods in these namespaces are never redirected; an empty list excludes none",
    ),
    honoured("log_level", "info", "`none`, `error`, `warn`, `info` or `debug`: the plugin's log level"),
    honoured("backend", "auto", "`auto`, `nft`, `iptables`, `iptables-nft` or `iptables-legacy`"),
    honoured("gates", "istio", "`istio` or `strict`: when a pod counts as part of the mesh"),
    honoured("ipv6", "auto", "`auto`, `redirect`, `leave` or `reject`"),
    honoured(
        "inbound_default",
        "all",
        "`all` or `containerPorts`: the inbound ports that are redirected if a pod's annotations do not set them",
    ),
    honoured(
        "max_intervals",
        "4096",
        "1 to 65536: the most port ranges, networks or interfaces in an annotation's list",
    ),
    honoured(
        "pod_source",
        "agent",
        "`agent`, or `api`: the plugin also queries the API server, with a kubeconfig on the host",
    ),
    honoured("take_over", "wait", "`wait` until istio-cni's agent has ended, or replace its entry `now`"),
    honoured(
        "istio_cni_namespace",
        "",
        "one more namespace in which istio-cni's agent may run, for `take_over: wait`",
    ),
    honoured(
        "plugin_dir",
        "check",
        "`check`: the entry is written only if one of the primary's plugins is in the plugin directory, or the runtime's configuration names that directory; `confirmed`: the runtime looks for plugins there, and a runtime handler with another conf directory does not make the agent unready ([AGENT.md](AGENT.md#3-status))",
    ),
    honoured(
        "put_back_istio",
        "false",
        "whether uninstalling restores an istio-cni entry, if its program still exists",
    ),
    honoured(
        "also_as",
        "",
        "comma-separated list of `istio-iptables`, `istio-iptables.sh`, `istio-cni-taint`: further names for `gybe` on the host",
    ),
    honoured(
        "cni_network_config",
        "",
        "the entry as a template, the older form: its keys apply where no other setting does",
    ),
    honoured(
        "repair",
        "repair",
        "what happens to running pods that should be redirected and are not: `repair` redirects them, `delete` deletes them, whatever their PodDisruptionBudget says (needs the component `repair-delete`), `label` labels them (`repair-label`), `off`: [AGENT.md](AGENT.md#repair-of-running-pods)",
    ),
    honoured("repair_label", "cni.istio.io/uninitialized=true", "`KEY=VALUE`: the label of `repair: label`"),
    honoured(
        "repair_label_selector",
        "",
        "a label selector: `repair: delete` and `label` act only on pods that it selects",
    ),
    honoured(
        "repair_field_selector",
        "",
        "a field selector: `repair: delete` and `label` act only on pods that it selects",
    ),
    honoured(
        "repair_exit_code",
        "",
        "an exit code, such as 126: `repair: delete` and `label` act only after `repair_init_container` has ended with it. 0 stands for any code but 0. Empty: no condition",
    ),
    honoured("repair_init_container", "istio-validation", "the name of that init container"),
    honoured(
        "leave_when_daemonset_gone",
        "false",
        "whether the agent uninstalls Gybe when the DaemonSet is deleted",
    ),
    honoured(
        "node_taints",
        "",
        "comma-separated list of taint keys, such as `cni.istio.io/not-ready`: the agent removes these `NoSchedule` taints from its node when it is ready, and sets them again when pods would start without redirection; needs the component `node-taint`",
    ),
    honoured(
        "node_condition",
        "false",
        "whether the agent writes the condition `GybeReady` of its node; needs the component `node-condition`",
    ),
    honoured(
        "events",
        "true",
        "whether the agent writes Kubernetes events about refused, repaired, deleted and labelled pods, and about this node",
    ),
    ambient(
        "ambient_enablement_selectors",
        "the labels `istio.io/dataplane-mode`",
        "which pods are ambient: a YAML or JSON list of `podSelector` and `namespaceSelector`, as in istio-cni's chart; only with `AMBIENT_ENABLED`, see [AMBIENT.md](AMBIENT.md)",
    ),
    ambient(
        "ambient_dns_capture",
        "true",
        "whether the DNS queries of ambient pods go to ztunnel; the pod's annotation has precedence",
    ),
    ambient("ambient_ipv6", "true", "whether the IPv6 of ambient pods is redirected"),
];

/// Our own variables.
pub const OURS: [SettingName; 13] = [
    honoured("GYBE_CONFIG_DIR", "/etc/gybe", "the ConfigMap's mount path"),
    honoured("GYBE_PROGRAMS_DIR", "/opt/gybe/bin", "the image's directory with `gybe` and `gybe-cni`"),
    honoured(
        "GYBE_SERVICE_ACCOUNT_DIR",
        SERVICE_ACCOUNT,
        "the directory with the service account's token and CA",
    ),
    honoured("MOUNTED_CNI_BIN_DIR", "/host/opt/cni/bin", "the host's plugin directory, as mounted"),
    honoured(
        "MOUNTED_CNI_CACHE_DIR",
        "/host/var/lib/cni",
        "libcni's cache, as mounted; without it the agent does not know which sandboxes exist, and keeps the plugin",
    ),
    honoured("GYBE_PROBE_DIR", "/run/gybe", "the directory of the probe report, as mounted"),
    honoured(
        "GYBE_ISTIO_RUN_DIR",
        "/var/run/istio-cni",
        "the directory of istio-cni's agent's log socket, as mounted; the socket shows that the agent runs",
    ),
    honoured("HEALTH_ADDRESS", "all", "the IP address of `/healthz`, `/readyz` and `/left`"),
    honoured("HEALTH_PORT", "8000", "their port; 0 for none"),
    honoured("MONITORING_ADDRESS", "all", "the IP address of `/metrics`"),
    honoured("POD_NAME", "", "the agent's own pod"),
    honoured(
        "GYBE_DAEMONSET",
        "gybe-node",
        "the DaemonSet of that pod, which the agent queries at its start and as it ends, for `mode: leave` and `leave_when_daemonset_gone`",
    ),
    honoured(
        "GYBE_POD_DIR",
        "",
        "a directory of the agent's pod alone, for the socket that `gybe agent-status` queries",
    ),
];

/// The incumbent's variables.
pub const INCUMBENTS: [SettingName; 61] = [
    honoured("CNI_CONF_NAME", "", "as `conf_name`"),
    honoured("CHAINED_CNI_PLUGIN", "true", "false means `shape: standalone`, unless `shape` is set"),
    other(
        Support::Ignored,
        "ISTIO_OWNED_CNI_CONFIG",
        "with `shape: auto` Gybe does not change the primary's file where the runtime reads drop-ins, and copies it nowhere",
    ),
    other(Support::Ignored, "ISTIO_OWNED_CNI_CONFIG_FILENAME", DROP_IN_NAME),
    other(Support::Ignored, "ISTIO_OWNED_CNI_CONF_FILENAME", DROP_IN_NAME),
    honoured("LOG_LEVEL", "info", "as `log_level`"),
    honoured("CNI_NETWORK_CONFIG", "", "as `cni_network_config`"),
    honoured("CNI_NETWORK_CONFIG_FILE", "", "a file with the value of `cni_network_config`"),
    honoured("MOUNTED_CNI_NET_DIR", "/host/etc/cni/net.d", "the host's conf directory, as mounted"),
    honoured("CNI_AGENT_RUN_DIR", "/run/gybe", "sockets and kubeconfig; the same path here and on the host"),
    honoured("KUBECONFIG_MODE", "0600", "permission bits of the kubeconfig"),
    honoured(
        "CNI_CONF_GROUP_READ",
        "false",
        "files that belong to Gybe in the conf directory are 0640, not 0600",
    ),
    honoured("KUBE_CA_FILE", "the service account's", "the CA in the kubeconfig"),
    honoured("SKIP_TLS_VERIFY", "false", "the kubeconfig does not verify the API server's certificate"),
    honoured("MONITORING_PORT", "15014", "the port of `/metrics`; 0 or less for none"),
    honoured("EXCLUDE_NAMESPACES", "", "as `exclude_namespaces`"),
    honoured("POD_NAMESPACE", "", "the agent's namespace"),
    honoured("KUBERNETES_SERVICE_HOST", "", "the API server"),
    honoured("KUBERNETES_SERVICE_PORT", "", "its port"),
    other(Support::Ignored, "KUBERNETES_SERVICE_PROTOCOL", "the API server is queried over https"),
    honoured("KUBERNETES_NODE_NAME", "", "this node's name"),
    honoured("NODE_NAME", "", "this node's name, if KUBERNETES_NODE_NAME is not set"),
    honoured("SYSTEM_NAMESPACE", "istio-system", "the namespace of istiod"),
    honoured("NATIVE_NFTABLES", "false", "true means `backend: nft`"),
    honoured(
        "FORCE_IPTABLES_BINARY",
        "",
        "`legacy` means `backend: iptables-legacy`, `nft` means `backend: iptables-nft`",
    ),
    honoured("LOG_OUTPUT_LEVEL", "", "the level of scope `cni-plugin`, `all` or `default`, as `log_level`"),
    other(Support::Ignored, "LOG_AS_JSON", "log lines are always JSON"),
    other(Support::Ignored, "LOG_TARGET", "log lines go to stderr"),
    other(Support::Ignored, "LOG_CALLER", "log lines contain no source position"),
    other(Support::Ignored, "LOG_STACKTRACE_LEVEL", "there are no stack traces"),
    other(Support::Ignored, "LOG_ROTATE", "log lines go to stderr"),
    honoured(
        "AMBIENT_ENABLED",
        "false",
        "ambient mode: pods that the enablement selectors select are redirected to the node's ztunnel; needs its socket's directory as a mount, and two rights: [AMBIENT.md](AMBIENT.md)",
    ),
    ambient("AMBIENT_ENABLEMENT_SELECTOR", "", "as `ambient_enablement_selectors`"),
    ambient("AMBIENT_DNS_CAPTURE", "true", "as `ambient_dns_capture`"),
    ambient("AMBIENT_IPV6", "true", "as `ambient_ipv6`"),
    ambient(
        "ZTUNNEL_UDS_ADDRESS",
        "/var/run/ztunnel/ztunnel.sock",
        "the socket at which ztunnel connects; the same path in ztunnel's container (`INPOD_UDS`)",
    ),
    ambient(
        "HOST_PROBE_SNAT_IP",
        "169.254.7.127",
        "the IPv4 source address of the kubelet's probes of ambient pods",
    ),
    ambient(
        "HOST_PROBE_SNAT_IPV6",
        "fd16:9254:7127:1337:ffff:ffff:ffff:ffff",
        "the IPv6 source address of the kubelet's probes of ambient pods",
    ),
    other(
        Support::Ignored,
        "AMBIENT_RECONCILE_POD_RULES_ON_STARTUP",
        "the container `repair` keeps the rules of enrolled pods as they should be",
    ),
    other(
        Support::Ignored,
        "ENABLE_AMBIENT_DETECTION_RETRY",
        "an ADD waits for the agent within `facts.deadline_ms`, and refuses a pod that is not known",
    ),
    other(Support::RefusedIfTrue, "AMBIENT_DISABLE_SAFE_UPGRADE", "every upgrade is safe; unset it"),
    other(
        Support::Ignored,
        "AMBIENT_USE_SCOPED_XTABLES_LOCKING",
        "each network namespace has a lock of its own",
    ),
    other(
        Support::RefusedIfTrue,
        "AMBIENT_ENABLE_AWS_BRANCH_ENI_PROBE",
        "Gybe writes no routing rules for the probes of pods with branch interfaces; unset it",
    ),
    other(Support::Ignored, "REVISION", "one agent serves the pods of all revisions"),
    honoured("REPAIR_ENABLED", "true", "false means `repair: off`"),
    honoured(
        "REPAIR_REPAIR_PODS",
        "true",
        "true means `repair: repair`; false `repair: off`, unless pods are deleted or labelled",
    ),
    honoured("REPAIR_DELETE_PODS", "false", "true means `repair: delete`, unless REPAIR_REPAIR_PODS is true"),
    honoured("REPAIR_LABEL_PODS", "false", "true means `repair: label`, unless pods are repaired or deleted"),
    honoured("REPAIR_BROKEN_POD_LABEL_KEY", "cni.istio.io/uninitialized", "the key in `repair_label`"),
    honoured("REPAIR_BROKEN_POD_LABEL_VALUE", "true", "the value in `repair_label`"),
    honoured(
        "REPAIR_NODE_NAME",
        "",
        "this node's name, if neither KUBERNETES_NODE_NAME nor NODE_NAME is set",
    ),
    other(Support::Ignored, "REPAIR_SIDECAR_ANNOTATION", JUDGED),
    honoured("REPAIR_INIT_CONTAINER_NAME", "istio-validation", "as `repair_init_container`"),
    other(Support::Ignored, "REPAIR_INIT_CONTAINER_TERMINATION_MESSAGE", JUDGED),
    honoured("REPAIR_INIT_CONTAINER_EXIT_CODE", "", "as `repair_exit_code`"),
    honoured("REPAIR_LABEL_SELECTORS", "", "as `repair_label_selector`"),
    honoured("REPAIR_FIELD_SELECTORS", "", "as `repair_field_selector`"),
    other(Support::Ignored, "REPAIR_RUN_AS_DAEMON", "it has no effect in istio-cni either"),
    other(Support::Ignored, "CURRENT_AGENT_VERSION", "it has no effect in istio-cni either"),
    other(Support::Ignored, "GOMEMLIMIT", "Gybe is not written in Go"),
    other(Support::Ignored, "ALLOW_SWITCH_TO_HOST_NS", "the agent enters no namespace"),
];

const DROP_IN_NAME: &str = "a drop-in is always named zz-gybe-cni.conf";
const JUDGED: &str = "Gybe judges the pod's network namespace";

/// Refuses settings that Gybe cannot apply, and notes those without effect.
pub(super) fn judge(reader: &mut SettingsReader<'_>) {
    for name in INCUMBENTS {
        let Some(setting) = reader.variable(name.name) else { continue };
        match name.support {
            Support::Honoured | Support::Ambient => {}
            Support::RefusedIfTrue if parse_bool(setting.text) == Some(false) => {}
            Support::RefusedIfTrue => reader.refuse(setting, name.meaning),
            Support::Ignored => {
                reader.notes.push(format!("{} has no effect: {}", setting.name, name.meaning));
            }
        }
    }
    unknown_variables(reader);
    overridden_variables(reader);
    unknown_keys(reader);
}

/// Keys over variables of the same meaning.
const OVER: [(&str, &[&str]); 15] = [
    ("shape", &["CHAINED_CNI_PLUGIN"]),
    ("conf_name", &["CNI_CONF_NAME"]),
    ("exclude_namespaces", &["EXCLUDE_NAMESPACES"]),
    ("log_level", &["LOG_LEVEL", "LOG_OUTPUT_LEVEL"]),
    ("backend", &["NATIVE_NFTABLES", "FORCE_IPTABLES_BINARY"]),
    ("cni_network_config", &["CNI_NETWORK_CONFIG", "CNI_NETWORK_CONFIG_FILE"]),
    ("repair", &["REPAIR_ENABLED", "REPAIR_REPAIR_PODS", "REPAIR_DELETE_PODS", "REPAIR_LABEL_PODS"]),
    ("repair_label", &["REPAIR_BROKEN_POD_LABEL_KEY", "REPAIR_BROKEN_POD_LABEL_VALUE"]),
    ("repair_label_selector", &["REPAIR_LABEL_SELECTORS"]),
    ("repair_field_selector", &["REPAIR_FIELD_SELECTORS"]),
    ("repair_init_container", &["REPAIR_INIT_CONTAINER_NAME"]),
    ("repair_exit_code", &["REPAIR_INIT_CONTAINER_EXIT_CODE"]),
    ("ambient_enablement_selectors", &["AMBIENT_ENABLEMENT_SELECTOR"]),
    ("ambient_dns_capture", &["AMBIENT_DNS_CAPTURE"]),
    ("ambient_ipv6", &["AMBIENT_IPV6"]),
];

/// Notes the variables that a key has precedence over.
fn overridden_variables(reader: &mut SettingsReader<'_>) {
    for (key, variables) in OVER {
        let Some(by_key) = reader.key(key) else { continue };
        for variable in variables.iter().filter_map(|variable| reader.variable(variable)).collect::<Vec<_>>()
        {
            if variable.text != by_key.text {
                let note = format!("{} has no effect: {key} of the ConfigMap has precedence", variable.name);
                reader.notes.push(note);
            }
        }
    }
}

/// Notes variables that look like misspelt ones. They are not refused: other programs have variables, too.
fn unknown_variables(reader: &mut SettingsReader<'_>) {
    let known = || OURS.iter().chain(&INCUMBENTS).map(|name| name.name);
    for variable in
        reader.sources.environment.keys().filter(|variable| !known().any(|name| name == *variable))
    {
        if let Some(near) = nearest_of(variable, &known(), 2) {
            reader.notes.push(format!("the variable {variable} has no effect; did you mean {near}?"));
        }
    }
}

/// Notes settings of ambient mode, which is off: they are not even parsed.
pub(super) fn note_without_ambient_mode(reader: &mut SettingsReader<'_>) {
    for SettingName { name, support, .. } in KEYS.iter().chain(&INCUMBENTS) {
        if *support == Support::Ambient && reader.key(name).or_else(|| reader.variable(name)).is_some() {
            reader.notes.push(format!("{name} has no effect: AMBIENT_ENABLED is not true"));
        }
    }
}

/// Notes unknown keys, which a later version's ConfigMap may have. A misspelt known key is refused, because
/// otherwise the node would be ready without the setting.
fn unknown_keys(reader: &mut SettingsReader<'_>) {
    let known = |key: &str| KEYS.iter().any(|name| name.name == key);
    let sources = reader.sources;
    for (key, text) in sources.files.iter().filter(|(key, _)| !known(key)) {
        match nearest_of(key, &KEYS.iter().map(|name| name.name), 2) {
            Some(near) => {
                let why = format!("unknown key; did you mean {near}?");
                reader.faults.push(InvalidSetting::new(key, text, why));
            }
            None => reader.notes.push(format!("unknown key {key} in the ConfigMap: ignored")),
        }
    }
}
