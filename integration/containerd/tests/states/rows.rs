//! The table of states: what is on the node, how the agent runs, and whether a pod is redirected.

use gybe_containerd_tests::{Generation, containerd};

use crate::node::OTHER_BIN_DIR;

/// Something that is put on the node, in the order of the table.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    /// Writes a conf file, or one in a network's directory.
    File(&'static str, Content),
    /// Writes a conf file of another user, which root without capabilities cannot read.
    Unreadable(&'static str, Content),
    /// Gives a directory to another user.
    UnreadableDirectory(&'static str),
    Directory(&'static str),
    /// Makes a symbolic link to a file of the host; without content the file does not exist.
    Link {
        name: &'static str,
        target: &'static str,
        content: Option<Content>,
    },
    /// Listens on the socket of istio-cni's agent.
    IstioAgent,
    /// Adds a plugin to [`OTHER_BIN_DIR`].
    OtherPlugin(&'static str),
    /// Removes a plugin from the runtime's directory.
    RemovePlugin(&'static str),
}

/// The content of a conf file.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Content {
    Text(&'static str),
    /// The primary plugin's list.
    List,
    /// The list behind a text.
    ListAfter(&'static str),
    /// The list with more plugins, in JSON.
    ListWith(&'static [&'static str]),
    /// The list with another member that is true.
    ListWithFlag(&'static str),
    /// The list with a member of 1 MiB.
    LargeList,
    /// The first plugin of the list as a file of its own.
    SinglePlugin,
}

/// Whether the agent has the probe's report about the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RuntimeReport {
    Present,
    Absent,
}

#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// Whether the next meshed pod is redirected.
    pub(crate) redirected: bool,
    pub(crate) steps: &'static [Step],
    pub(crate) generation: Generation,
    /// Keys of the ConfigMap.
    pub(crate) settings: &'static [(&'static str, &'static str)],
    pub(crate) environment: &'static [(&'static str, &'static str)],
    /// A program with arguments that runs the agent.
    pub(crate) wrapper: &'static [&'static str],
    /// More arguments of `gybe install`.
    pub(crate) install_arguments: &'static [&'static str],
    pub(crate) runtime_report: RuntimeReport,
    /// The directory into which the agent installs programs.
    pub(crate) bin_dir: &'static str,
}

use Content::{LargeList, List, ListAfter, ListWith, ListWithFlag, SinglePlugin, Text};
use Step::{Directory, File, IstioAgent, Link, OtherPlugin, RemovePlugin, Unreadable, UnreadableDirectory};

const REDIRECTED: bool = true;
const NOT: bool = false;

const fn row(name: &'static str, redirected: bool, steps: &'static [Step]) -> Row {
    Row {
        name,
        redirected,
        steps,
        generation: Generation::V2,
        settings: &[],
        environment: &[],
        wrapper: &[],
        install_arguments: &[],
        runtime_report: RuntimeReport::Present,
        bin_dir: containerd::BIN_DIR,
    }
}

impl Row {
    const fn on(self, generation: Generation) -> Self {
        Self { generation, ..self }
    }

    const fn settings(self, settings: &'static [(&'static str, &'static str)]) -> Self {
        Self { settings, ..self }
    }

    const fn wrapper(self, wrapper: &'static [&'static str]) -> Self {
        Self { wrapper, ..self }
    }

    const fn into_other_bin_dir(self) -> Self {
        Self { bin_dir: OTHER_BIN_DIR, ..self }
    }

    const fn without_runtime_report(self) -> Self {
        Self { runtime_report: RuntimeReport::Absent, ..self }
    }
}

const OLD: Generation = Generation::V1_7;

/// The agent's container has no capabilities.
const NO_CAPABILITIES: &[&str] = &["setpriv", "--bounding-set=-all", "--inh-caps=-all"];
/// A container that does not mount the targets of links.
const NO_LINK_TARGETS: &[&str] =
    &["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /etc/cni/link-targets && exec \"$0\" \"$@\""];
const CHAINED: &[(&str, &str)] = &[("shape", "chained")];
const STANDALONE: &[(&str, &str)] = &[("shape", "standalone")];
const DROP_IN: &[(&str, &str)] = &[("shape", "dropin")];
const PINNED: &[(&str, &str)] = &[("conf_name", LIST)];

const LIST: &str = "10-net.conflist";
/// The file of the primary plugin.
const PRIMARY: Step = File(LIST, List);
const BEFORE: &str = "05-other.conflist";
const BEHIND: &str = "20-other.conflist";
const DROP_IN_FILE: &str = "gybe-test/50-tuning.conf";
const SINGLE: Step = File("10-net.conf", SinglePlugin);

const TRUNCATED: Content = Text(r#"{"name":"other","plugins":["#);
const ONE_NAMESERVER: &str = r#"{"name":"other","cniVersion":"1.0.0","plugins":[{"type":"bridge","dns":{"nameservers":"10.0.0.10"}}]}"#;
const NEWER_VERSION: &str = r#"{"name":"gybe-test","cniVersion":"1.2.0","plugins":[{"type":"bridge"}]}"#;
const ISTIO_CNI: Content = Text(r#"{"name":"istio-cni","cniVersion":"1.0.0","type":"istio-cni"}"#);
const TUNING: Content = Text(r#"{"name":"gybe-test","cniVersion":"1.0.0","type":"tuning"}"#);

const GYBE_ENTRY: &str = r#"{"type":"gybe-cni","capabilities":{"io.kubernetes.cri.pod-annotations":true}}"#;
const REFUSED_GYBE_ENTRY: &str = r#"{"type":"gybe-cni","backend":"nftt"}"#;
const TUNING_ENTRY: &str = r#"{"type":"tuning"}"#;
const ISTIO_ENTRY: &str = r#"{"type":"istio-cni"}"#;
const AMBIENT_ENTRY: &str = r#"{"type":"istio-cni","ambient_enabled":true}"#;

// containerd notices a new symbolic link only at the next write to the directory: links come before the primary's file.
#[rustfmt::skip]
pub(crate) const ROWS: &[Row] = &[
    row("a list", REDIRECTED, &[PRIMARY]),
    row("a list", REDIRECTED, &[PRIMARY]).on(OLD),
    row("a single .conf", REDIRECTED, &[SINGLE]),
    row("a single .conf", REDIRECTED, &[SINGLE]).on(OLD),
    row("a single .json", REDIRECTED, &[File("10-net.json", SinglePlugin)]),
    row("a list that loads no drop-ins", REDIRECTED, &[File(LIST, ListWithFlag("loadOnlyInlinedPlugins"))]),
    row("two lists", REDIRECTED, &[File(BEHIND, List), PRIMARY]),
    row("a .conf and a list of the same name", REDIRECTED, &[SINGLE, PRIMARY]),
    row("a single .conf, and both names that it could have as a list exist", NOT,
        &[SINGLE, PRIMARY, File("10-net.conf.conflist", List)]),
    row("no conf file", NOT, &[]),

    // A file that the runtime cannot load, or the agent cannot read.
    row("a truncated file first", NOT, &[File(BEFORE, TRUNCATED), PRIMARY]),
    row("a truncated file first", NOT, &[File(BEFORE, TRUNCATED), PRIMARY]).on(OLD),
    row("a truncated file last", REDIRECTED, &[File(BEHIND, TRUNCATED), PRIMARY]),
    row("an empty file first", NOT, &[File(BEFORE, Text("")), PRIMARY]),
    row("a list without plugins first", NOT,
        &[File(BEFORE, Text(r#"{"name":"other","cniVersion":"1.0.0","plugins":[]}"#)), PRIMARY]),
    row("a list without a name first", NOT,
        &[File(BEFORE, Text(r#"{"cniVersion":"1.0.0","plugins":[{"type":"bridge"}]}"#)), PRIMARY]),
    row("an array first", NOT, &[File(BEFORE, Text("[]")), PRIMARY]),
    row("a .conf without a type first", NOT, &[File("05-other.conf", Text("{}")), PRIMARY]),
    row("a list with a comment first", NOT, &[File(BEFORE, ListAfter("// ours\n")), PRIMARY]),
    row("a list with a byte order mark first", NOT, &[File(BEFORE, ListAfter("\u{feff}")), PRIMARY]),
    row("a list with one nameserver in place of a list first", NOT,
        &[File(BEFORE, Text(ONE_NAMESERVER)), PRIMARY]),
    row("a list of a CNI version that Gybe does not support", NOT, &[File(LIST, Text(NEWER_VERSION))]),
    row("a broken file with the name .conf", NOT, &[File(".conf", Text("{}")), PRIMARY]),
    row("a broken .bak first", REDIRECTED, &[File("05-other.conflist.bak", TRUNCATED), PRIMARY]),
    row("a broken .CONFLIST first", REDIRECTED, &[File("05-OTHER.CONFLIST", TRUNCATED), PRIMARY]),
    row("a directory with the suffix .conflist first", REDIRECTED, &[PRIMARY, Directory(BEFORE)]),
    row("a list of more than 1 MiB first", NOT, &[File(BEFORE, LargeList), PRIMARY]),
    row("a file of another user first, agent without capabilities", NOT,
        &[PRIMARY, Unreadable(BEFORE, List)]).wrapper(NO_CAPABILITIES),
    row("a file of another user first, agent without capabilities", NOT,
        &[PRIMARY, Unreadable(BEFORE, List)]).wrapper(NO_CAPABILITIES).on(OLD),
    // Without capabilities `gybe install` does not know which runtime runs, and so not whether it reads a drop-in.
    row("chained, a file of another user last, agent without capabilities", REDIRECTED,
        &[PRIMARY, Unreadable(BEHIND, List)]).settings(CHAINED).wrapper(NO_CAPABILITIES),
    row("a link first, to a file that the agent does not mount", NOT,
        &[Link { name: BEFORE, target: "other.conflist", content: Some(List) }, PRIMARY]).wrapper(NO_LINK_TARGETS),
    row("a link first, to a file that the agent does not mount", NOT,
        &[Link { name: BEFORE, target: "other.conflist", content: Some(List) }, PRIMARY])
        .wrapper(NO_LINK_TARGETS).on(OLD),
    row("a link first", REDIRECTED,
        &[Link { name: BEFORE, target: "other.conflist", content: Some(List) }, PRIMARY]),
    row("a link first", NOT,
        &[Link { name: BEFORE, target: "other.conflist", content: Some(List) }, PRIMARY]).on(OLD),
    row("a dangling link first", NOT, &[Link { name: BEFORE, target: "missing.conflist", content: None }, PRIMARY]),
    row("a dangling link last", REDIRECTED,
        &[PRIMARY, Link { name: BEHIND, target: "missing.conflist", content: None }]),

    // Drop-ins. containerd does not watch a network's directory, so a row writes the drop-in before the network's file.
    row("a drop-in of another owner", REDIRECTED, &[File(DROP_IN_FILE, TUNING), PRIMARY]),
    row("a drop-in of another user, agent without capabilities", NOT,
        &[Unreadable(DROP_IN_FILE, TUNING), PRIMARY]).wrapper(NO_CAPABILITIES),
    row("a network's directory of another user, agent without capabilities", NOT,
        &[File(DROP_IN_FILE, TUNING), UnreadableDirectory("gybe-test"), PRIMARY]).wrapper(NO_CAPABILITIES),
    row("a broken drop-in", NOT, &[File(DROP_IN_FILE, Text("{")), PRIMARY]),
    row("a broken drop-in", REDIRECTED, &[File(DROP_IN_FILE, Text("{")), PRIMARY]).on(OLD),

    // istio-cni.
    row("a file with only istio-cni first", NOT, &[File("05-istio.conf", ISTIO_CNI), PRIMARY]),
    row("a file with only istio-cni last", REDIRECTED, &[File("YYY-istio-cni.conf", ISTIO_CNI), PRIMARY]),
    row("only a file with istio-cni", NOT, &[File("YYY-istio-cni.conf", ISTIO_CNI)]),
    row("istio-cni in the list, its agent does not run", REDIRECTED, &[File(LIST, ListWith(&[ISTIO_ENTRY]))]),
    row("istio-cni in the list, its agent runs", NOT, &[File(LIST, ListWith(&[ISTIO_ENTRY])), IstioAgent]),
    row("istio-cni in the list, for ambient mode", NOT, &[File(LIST, ListWith(&[AMBIENT_ENTRY]))]),

    // Gybe's entry is already in a list.
    row("Gybe's entry before another plugin", REDIRECTED, &[File(LIST, ListWith(&[GYBE_ENTRY, TUNING_ENTRY]))]),
    row("Gybe's entry in the list", REDIRECTED, &[File(LIST, ListWith(&[GYBE_ENTRY]))]),
    row("Gybe's entry twice", REDIRECTED, &[File(LIST, ListWith(&[GYBE_ENTRY, GYBE_ENTRY]))]),
    row("an entry that the plugin refuses", REDIRECTED, &[File(LIST, ListWith(&[REFUSED_GYBE_ENTRY]))]),
    row("Gybe's entry in a list that the runtime does not load", REDIRECTED,
        &[PRIMARY, File(BEHIND, ListWith(&[GYBE_ENTRY]))]),

    // Settings.
    row("the loaded list is pinned", REDIRECTED, &[PRIMARY]).settings(PINNED),
    row("a list behind another is pinned", NOT,
        &[File(BEFORE, List), File(LIST, ListWith(&[GYBE_ENTRY]))]).settings(PINNED),
    row("a missing file is pinned", NOT, &[PRIMARY]).settings(&[("conf_name", "30-x.conflist")]),
    row("standalone without Multus", NOT, &[PRIMARY]).settings(STANDALONE),
    Row {
        environment: &[("CHAINED_CNI_PLUGIN", "false")],
        install_arguments: &["--shape", "standalone"],
        ..row("CHAINED_CNI_PLUGIN=false without Multus", NOT, &[PRIMARY])
    },
    row("standalone, and no other network", NOT, &[]).settings(STANDALONE),
    row("standalone with a name that sorts first", NOT, &[PRIMARY])
        .settings(&[("shape", "standalone"), ("conf_name", "00-mesh.conf")]),
    row("drop-in", REDIRECTED, &[PRIMARY]).settings(DROP_IN),
    row("drop-in, and a runtime that loads none", NOT, &[PRIMARY]).settings(DROP_IN).on(OLD),
    row("drop-in, and a single .conf", NOT, &[SINGLE]).settings(DROP_IN),
    row("drop-in, and a list that loads none", NOT,
        &[File(LIST, ListWithFlag("loadOnlyInlinedPlugins"))]).settings(DROP_IN),

    row("chained", REDIRECTED, &[PRIMARY]).settings(CHAINED),
    row("chained, and a link first", NOT,
        &[Link { name: BEFORE, target: "other.conflist", content: Some(List) }, PRIMARY]).settings(CHAINED),
    row("chained, Gybe's entry before another plugin", REDIRECTED,
        &[File(LIST, ListWith(&[GYBE_ENTRY, TUNING_ENTRY]))]).settings(CHAINED),
    row("chained, istio-cni in the list, its agent does not run", REDIRECTED,
        &[File(LIST, ListWith(&[ISTIO_ENTRY]))]).settings(CHAINED),

    // Programs.
    row("programs are installed into a directory that the runtime does not search", NOT, &[PRIMARY])
        .into_other_bin_dir(),
    row("the same, without a report about the runtime", NOT, &[PRIMARY])
        .into_other_bin_dir().without_runtime_report(),
    row("the same, with a plugin of the primary there", NOT, &[PRIMARY, OtherPlugin("bridge")])
        .into_other_bin_dir(),
    // The entry is older than the probe's first report.
    row("the same, with Gybe's entry in the list", NOT,
        &[PRIMARY, OtherPlugin("bridge"), File(LIST, ListWith(&[GYBE_ENTRY]))]).into_other_bin_dir(),
    row("no report about the runtime", REDIRECTED, &[PRIMARY]).without_runtime_report(),
    row("none of the primary's plugins exists", NOT,
        &[PRIMARY, RemovePlugin("bridge"), RemovePlugin("portmap")]).without_runtime_report(),
];
