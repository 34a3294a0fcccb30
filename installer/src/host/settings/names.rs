//! Every name a setting may have, ours and the incumbent's (docs/ISTIO.md, section 5): what it
//! means here, and what is said of one that means nothing.

use super::environment::SERVICE_ACCOUNT;
use super::error::InvalidSetting;
use super::reader::{SettingsReader, truth};

/// A name, and what becomes of it.
#[derive(Debug, Clone, Copy)]
pub struct SettingName {
    /// Of the variable, or of the ConfigMap's key.
    pub name: &'static str,
    /// What holds where nobody says anything.
    pub default: &'static str,
    /// What it means here.
    pub meaning: &'static str,
    /// What becomes of it.
    pub fate: Support,
}

/// What becomes of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// It does what it says.
    Honoured,
    /// Refused when it is true.
    RefusedIfTrue,
    /// Refused when it says anything.
    Refused,
    /// Told, and without effect.
    Ignored,
}

const fn honoured(name: &'static str, default: &'static str, meaning: &'static str) -> SettingName {
    SettingName { name, default, meaning, fate: Support::Honoured }
}

const fn other(fate: Support, name: &'static str, meaning: &'static str) -> SettingName {
    SettingName { name, default: "", meaning, fate }
}

/// Keys of the ConfigMap. A changed one is followed without a restart.
pub const KEYS: [SettingName; 18] = [
    honoured(
        "mode",
        "install",
        "`install`, or `leave`: out of the chain; the programs go when no sandbox needs them",
    ),
    honoured(
        "shape",
        "chained",
        "`chained`, `standalone` or `dropin`: where the entry goes; `dropin` needs containerd 2.1 or CRI-O 1.34",
    ),
    honoured(
        "conf_name",
        "",
        "the conf file to change (chained) or to be (standalone), in place of the one the runtime takes",
    ),
    honoured(
        "exclude_namespaces",
        "our own, kube-system, istiod's",
        "comma list: pods of these are left alone; an empty list is a list",
    ),
    honoured("log_level", "info", "`none`, `error`, `warn`, `info` or `debug`: how much the plugin tells"),
    honoured("backend", "auto", "`auto`, `nft`, `iptables`, `iptables-nft` or `iptables-legacy`"),
    honoured("gates", "istio", "`istio` or `strict`: when a pod counts as part of the mesh"),
    honoured("ipv6", "auto", "`auto`, `redirect`, `leave` or `reject`"),
    honoured(
        "inbound_default",
        "all",
        "`all` or `containerPorts`: what is captured when the pod does not say",
    ),
    honoured(
        "max_intervals",
        "4096",
        "1 to 65536: how many ports in a row, networks or interfaces a list in an annotation may come to",
    ),
    honoured(
        "pod_source",
        "agent",
        "`agent`, or `api`: also ask the API server, with a kubeconfig on the host",
    ),
    honoured("take_over", "wait", "`wait` for istio-cni's agent to go, or `now`"),
    honoured(
        "istio_cni_namespace",
        "",
        "one more namespace in which istio-cni's agent may run: `take_over: wait` waits for it there too",
    ),
    honoured(
        "plugin_dir",
        "check",
        "`check`: nothing is chained before one of the primary's plugins is where ours are placed, or the runtime's configuration names that directory; `confirmed`: the runtime looks for plugins there",
    ),
    honoured(
        "put_back_istio",
        "false",
        "whether an istio-cni entry comes back when we leave, if its program is there",
    ),
    honoured(
        "also_as",
        "",
        "comma list of `istio-iptables`, `istio-iptables.sh`, `istio-cni-taint`: further names for `gybe` on the host",
    ),
    honoured(
        "cni_network_config",
        "",
        "the entry in its older form, a template: what holds where the other settings are silent",
    ),
    honoured("leave_when_daemonset_gone", "false", "whether to leave when the DaemonSet is gone"),
];

/// Variables of ours.
pub const OURS: [SettingName; 11] = [
    honoured("GYBE_CONFIG_DIR", "/etc/gybe", "where the ConfigMap is mounted"),
    honoured("GYBE_PROGRAMS_DIR", "/opt/gybe/bin", "where the image has `gybe` and `gybe-cni`"),
    honoured("GYBE_SERVICE_ACCOUNT_DIR", SERVICE_ACCOUNT, "token and CA of the service account"),
    honoured("MOUNTED_CNI_BIN_DIR", "/host/opt/cni/bin", "the host's directory of plugins, as mounted"),
    honoured(
        "MOUNTED_CNI_CACHE_DIR",
        "/host/var/lib/cni",
        "libcni's cache, as mounted; without it nobody knows which sandboxes live, and a program too many stays",
    ),
    honoured("GYBE_PROBE_DIR", "/run/gybe", "where the probe keeps what it finds out, as mounted"),
    honoured(
        "GYBE_ISTIO_RUN_DIR",
        "/var/run/istio-cni",
        "where istio-cni's agent has its log socket, as mounted; a sign of life beside its pod",
    ),
    honoured("HEALTH_ADDRESS", "every one", "an IP address for `/healthz`, `/readyz` and `/left`"),
    honoured("HEALTH_PORT", "8000", "their port; 0 for none"),
    honoured("MONITORING_ADDRESS", "every one", "an IP address for `/metrics`"),
    honoured("POD_NAME", "", "the agent's own pod"),
];

/// Variables of the incumbent's.
pub const INCUMBENTS: [SettingName; 61] = [
    honoured("CNI_CONF_NAME", "", "as `conf_name`"),
    honoured("CHAINED_CNI_PLUGIN", "true", "as `shape`: `chained` or `standalone`"),
    other(
        Support::RefusedIfTrue,
        "ISTIO_OWNED_CNI_CONFIG",
        "set `shape: dropin`, where the runtime reads drop-ins (containerd 2.1, CRI-O 1.34): the primary's file is left alone there too, and nothing of it is copied",
    ),
    other(
        Support::Refused,
        "ISTIO_OWNED_CNI_CONFIG_FILENAME",
        "set `shape: dropin`, where the runtime reads drop-ins (containerd 2.1, CRI-O 1.34): its file has one name, zz-gybe-cni.conf",
    ),
    other(
        Support::Refused,
        "ISTIO_OWNED_CNI_CONF_FILENAME",
        "set `shape: dropin`, where the runtime reads drop-ins (containerd 2.1, CRI-O 1.34): its file has one name, zz-gybe-cni.conf",
    ),
    honoured("LOG_LEVEL", "info", "as `log_level`"),
    honoured("CNI_NETWORK_CONFIG", "", "as `cni_network_config`"),
    honoured("CNI_NETWORK_CONFIG_FILE", "", "a file that says what `cni_network_config` would"),
    honoured("MOUNTED_CNI_NET_DIR", "/host/etc/cni/net.d", "the host's conf directory, as mounted"),
    honoured("CNI_AGENT_RUN_DIR", "/run/gybe", "sockets and kubeconfig; the same path here and on the host"),
    honoured("KUBECONFIG_MODE", "0600", "permission bits of the kubeconfig"),
    honoured("CNI_CONF_GROUP_READ", "false", "files of our own in the conf directory are 0640, not 0600"),
    honoured("KUBE_CA_FILE", "the service account's", "the CA in the kubeconfig"),
    honoured("SKIP_TLS_VERIFY", "false", "a kubeconfig that trusts anybody"),
    honoured("MONITORING_PORT", "15014", "port of `/metrics`; 0 or less for none"),
    honoured("EXCLUDE_NAMESPACES", "", "as `exclude_namespaces`"),
    honoured("POD_NAMESPACE", "", "the agent's namespace"),
    honoured("KUBERNETES_SERVICE_HOST", "", "the API server"),
    honoured("KUBERNETES_SERVICE_PORT", "", "its port"),
    honoured("KUBERNETES_SERVICE_PROTOCOL", "https", "how it is spoken to"),
    honoured("KUBERNETES_NODE_NAME", "", "this node's name"),
    honoured("NODE_NAME", "", "the same, where the other is not set"),
    honoured("SYSTEM_NAMESPACE", "istio-system", "where istiod is"),
    honoured("NATIVE_NFTABLES", "false", "true is `backend: nft`"),
    honoured("FORCE_IPTABLES_BINARY", "", "`legacy` is `backend: iptables-legacy`, `nft` is `iptables-nft`"),
    honoured("LOG_OUTPUT_LEVEL", "", "the level of scope `cni-plugin`, `all` or `default`, as `log_level`"),
    other(Support::Ignored, "LOG_AS_JSON", "lines are JSON always"),
    other(Support::Ignored, "LOG_TARGET", "lines go to stderr"),
    other(Support::Ignored, "LOG_CALLER", "lines name no place in the source"),
    other(Support::Ignored, "LOG_STACKTRACE_LEVEL", "there are no stack traces"),
    other(Support::Ignored, "LOG_ROTATE", "lines go to stderr"),
    other(
        Support::RefusedIfTrue,
        "AMBIENT_ENABLED",
        "there is no ambient mode; keep istio-cni where pods need it",
    ),
    other(Support::RefusedIfTrue, "AMBIENT_DNS_CAPTURE", "there is no ambient mode; unset it"),
    other(Support::RefusedIfTrue, "AMBIENT_IPV6", "there is no ambient mode; unset it"),
    other(
        Support::RefusedIfTrue,
        "AMBIENT_RECONCILE_POD_RULES_ON_STARTUP",
        "there is no ambient mode; unset it",
    ),
    other(Support::RefusedIfTrue, "ENABLE_AMBIENT_DETECTION_RETRY", "there is no ambient mode; unset it"),
    other(
        Support::RefusedIfTrue,
        "AMBIENT_DISABLE_SAFE_UPGRADE",
        "there is no ambient mode, and every upgrade is safe; unset it",
    ),
    other(Support::RefusedIfTrue, "AMBIENT_USE_SCOPED_XTABLES_LOCKING", "there is no ambient mode; unset it"),
    other(
        Support::RefusedIfTrue,
        "AMBIENT_ENABLE_AWS_BRANCH_ENI_PROBE",
        "there is no ambient mode; unset it",
    ),
    other(Support::Ignored, "AMBIENT_ENABLEMENT_SELECTOR", "it means something in ambient mode alone"),
    other(Support::Ignored, "ZTUNNEL_UDS_ADDRESS", "it means something in ambient mode alone"),
    other(Support::Ignored, "HOST_PROBE_SNAT_IP", "it means something in ambient mode alone"),
    other(Support::Ignored, "HOST_PROBE_SNAT_IPV6", "it means something in ambient mode alone"),
    other(Support::Ignored, "REVISION", "it means something in ambient mode alone"),
    other(Support::RefusedIfTrue, "REPAIR_ENABLED", REPAIR),
    other(Support::RefusedIfTrue, "REPAIR_REPAIR_PODS", REPAIR),
    other(Support::RefusedIfTrue, "REPAIR_DELETE_PODS", REPAIR),
    other(Support::RefusedIfTrue, "REPAIR_LABEL_PODS", REPAIR),
    other(Support::Ignored, "REPAIR_BROKEN_POD_LABEL_KEY", REPAIRS),
    other(Support::Ignored, "REPAIR_BROKEN_POD_LABEL_VALUE", REPAIRS),
    other(Support::Ignored, "REPAIR_NODE_NAME", REPAIRS),
    other(Support::Ignored, "REPAIR_SIDECAR_ANNOTATION", REPAIRS),
    other(Support::Ignored, "REPAIR_INIT_CONTAINER_NAME", REPAIRS),
    other(Support::Ignored, "REPAIR_INIT_CONTAINER_TERMINATION_MESSAGE", REPAIRS),
    other(Support::Ignored, "REPAIR_INIT_CONTAINER_EXIT_CODE", REPAIRS),
    other(Support::Ignored, "REPAIR_LABEL_SELECTORS", REPAIRS),
    other(Support::Ignored, "REPAIR_FIELD_SELECTORS", REPAIRS),
    other(Support::Ignored, "REPAIR_RUN_AS_DAEMON", "it does nothing in the incumbent either"),
    other(Support::Ignored, "CURRENT_AGENT_VERSION", "it does nothing in the incumbent either"),
    other(Support::Ignored, "GOMEMLIMIT", "nothing here is written in Go"),
    other(Support::Ignored, "ALLOW_SWITCH_TO_HOST_NS", "the agent enters no namespace"),
];

const REPAIR: &str = "there is no repair of pods yet: delete a pod that started unredirected, which istio-validation keeps from running; unset it";
const REPAIRS: &str = "there is no repair of pods yet";

/// Refuses what asks for something that is not done here, and notes what is without effect.
pub(super) fn judge(reader: &mut SettingsReader<'_>) {
    for name in INCUMBENTS {
        let Some(said) = reader.variable(name.name) else { continue };
        match name.fate {
            Support::Honoured => {}
            Support::RefusedIfTrue if truth(said.text) == Some(false) => {}
            Support::RefusedIfTrue | Support::Refused => reader.refuse(said, name.meaning),
            Support::Ignored => reader.notes.push(format!("{} has no effect: {}", said.name, name.meaning)),
        }
    }
    unknown_keys(reader);
}

/// A later version's ConfigMap may have keys this one does not know, so they are no faults; a known
/// key misspelt is one, or the node would be ready without what was asked of it.
fn unknown_keys(reader: &mut SettingsReader<'_>) {
    let known = |key: &str| KEYS.iter().any(|name| name.name == key);
    let given = reader.given;
    for (key, text) in given.files.iter().filter(|(key, _)| !known(key)) {
        let near = KEYS.iter().find(|name| strsim::damerau_levenshtein(name.name, key) <= 2);
        match near {
            Some(near) => {
                let why = format!("no key of ours; did you mean {}?", near.name);
                reader.faults.push(InvalidSetting::new(key, text, why));
            }
            None => reader.notes.push(format!("the ConfigMap's key {key} means nothing to this version")),
        }
    }
}
