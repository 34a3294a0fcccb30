//! The states: how each is made, and whether a pod meets Gybe there.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use gybe_containerd_tests::{Chain, Generation, config};
use serde_json::{Value, json};

use crate::site::{Site, make_unreadable};

/// Whether the agent has what the probe saw of the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Report {
    Kept,
    Absent,
}

#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) generation: Generation,
    pub(crate) make: fn(&Site),
    /// Of the ConfigMap.
    pub(crate) settings: &'static [(&'static str, &'static str)],
    pub(crate) environment: &'static [(&'static str, &'static str)],
    /// Words before the agent's own: what it is run by.
    pub(crate) wrapper: &'static [&'static str],
    /// More words for `gybe install`.
    pub(crate) flags: &'static [&'static str],
    pub(crate) report: Report,
    /// Where the agent places programs.
    pub(crate) bin: &'static str,
    pub(crate) is_met: bool,
}

impl Row {
    const fn of(name: &'static str, is_met: bool, make: fn(&Site)) -> Self {
        Self {
            name,
            generation: Generation::V2,
            make,
            settings: &[],
            environment: &[],
            wrapper: &[],
            flags: &[],
            report: Report::Kept,
            bin: config::BIN_DIR,
            is_met,
        }
    }

    const fn by(self, generation: Generation) -> Self {
        Self { generation, ..self }
    }

    const fn set(self, settings: &'static [(&'static str, &'static str)]) -> Self {
        Self { settings, ..self }
    }

    const fn run_by(self, wrapper: &'static [&'static str]) -> Self {
        Self { wrapper, ..self }
    }
}

/// As the agent's container has it.
const WITHOUT_CAPABILITIES: &[&str] = &["setpriv", "--bounding-set=-all", "--inh-caps=-all"];
/// A container in which the links' ends are not mounted.
const WITHOUT_LINKS: &[&str] =
    &["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /run/gybe/elsewhere && exec \"$0\" \"$@\""];
const STANDALONE: &[(&str, &str)] = &[("shape", "standalone")];
const DROP_IN: &[(&str, &str)] = &[("shape", "dropin")];
const OLD: Generation = Generation::V1_7;

const LIST: &str = "10-net.conflist";
const ISTIOS: &str = r#"{"name":"istio-cni","cniVersion":"1.0.0","type":"istio-cni"}"#;
/// What a plugin's agent wrote half of.
const HALF: &str = r#"{"name":"other","plugins":["#;

/// The primary's list.
fn list(site: &Site) -> String {
    Chain::of_reference_plugins(site.generation).written(0)
}

fn value(site: &Site) -> Value {
    serde_json::from_str(&list(site)).unwrap()
}

/// The list with these plugins behind.
fn with(site: &Site, more: &[Value]) -> String {
    let mut list = value(site);
    list["plugins"].as_array_mut().unwrap().extend_from_slice(more);
    list.to_string()
}

/// The list with another member.
fn saying(site: &Site, key: &str, said: Value) -> String {
    let mut list = value(site);
    list[key] = said;
    list.to_string()
}

/// The first of its plugins as a file of its own.
fn single(site: &Site) -> String {
    let list = value(site);
    let mut plugin = list["plugins"][0].clone();
    plugin["name"] = list["name"].clone();
    plugin["cniVersion"] = list["cniVersion"].clone();
    plugin.to_string()
}

fn before(site: &Site, name: &str, text: &str) {
    site.put(name, text);
    site.put(LIST, &list(site));
}

fn ours() -> Value {
    json!({ "type": "gybe-cni", "capabilities": { "io.kubernetes.cri.pod-annotations": true } })
}

fn primary(site: &Site) {
    site.put(LIST, &list(site));
}

fn one_single(site: &Site) {
    site.put("10-net.conf", &single(site));
}

fn json_file(site: &Site) {
    site.put("10-net.json", &single(site));
}

fn two_lists(site: &Site) {
    before(site, "20-other.conflist", &list(site));
}

fn broken_behind(site: &Site) {
    before(site, "20-other.conflist", HALF);
}

fn half_before(site: &Site) {
    before(site, "05-other.conflist", HALF);
}

fn empty_before(site: &Site) {
    before(site, "05-other.conflist", "");
}

fn no_plugins_before(site: &Site) {
    before(site, "05-other.conflist", r#"{"name":"other","cniVersion":"1.0.0","plugins":[]}"#);
}

fn no_name_before(site: &Site) {
    before(site, "05-other.conflist", r#"{"cniVersion":"1.0.0","plugins":[{"type":"bridge"}]}"#);
}

fn array_before(site: &Site) {
    before(site, "05-other.conflist", "[]");
}

fn no_type_before(site: &Site) {
    before(site, "05-other.conf", "{}");
}

fn comment_before(site: &Site) {
    before(site, "05-other.conflist", &format!("// ours\n{}", list(site)));
}

fn byte_order_mark_before(site: &Site) {
    before(site, "05-other.conflist", &format!("\u{feff}{}", list(site)));
}

fn hidden_before(site: &Site) {
    before(site, ".conf", "{}");
}

fn backup_before(site: &Site) {
    before(site, "05-other.conflist.bak", HALF);
}

fn upper_case_before(site: &Site) {
    before(site, "05-OTHER.CONFLIST", HALF);
}

fn directory_before(site: &Site) {
    primary(site);
    fs::create_dir(site.path(config::CONF_DIR).join("05-other.conflist")).unwrap();
}

fn large_before(site: &Site) {
    let large = saying(site, "filler", Value::String("x".repeat(1 << 20)));
    before(site, "05-other.conflist", &large);
}

fn unreadable_before(site: &Site) {
    primary(site);
    site.put_unreadable("05-other.conflist", &list(site));
}

fn unreadable_behind(site: &Site) {
    primary(site);
    site.put_unreadable("20-other.conflist", &list(site));
}

// containerd sees a link only with the next write.
fn link_before(site: &Site) {
    site.link("05-other.conflist", "other.conflist", Some(&list(site)));
    primary(site);
}

fn dangling_before(site: &Site) {
    site.link("05-other.conflist", "gone.conflist", None);
    primary(site);
}

fn link_behind(site: &Site) {
    primary(site);
    site.link("20-other.conflist", "gone.conflist", None);
}

const TUNING: &str = r#"{"name":"gybe-test","cniVersion":"1.0.0","type":"tuning"}"#;

fn drop_in_of_another(site: &Site) {
    before(site, "gybe-test/50-tuning.conf", TUNING);
}

fn unreadable_drop_in(site: &Site) {
    primary(site);
    site.put_unreadable("gybe-test/50-tuning.conf", TUNING);
}

fn unreadable_directory(site: &Site) {
    let drop_in = site.put("gybe-test/50-tuning.conf", TUNING);
    make_unreadable(drop_in.parent().unwrap());
    primary(site);
}

fn broken_drop_in(site: &Site) {
    before(site, "gybe-test/50-tuning.conf", "{");
}

fn istio_before(site: &Site) {
    before(site, "05-istio.conf", ISTIOS);
}

fn istio_behind(site: &Site) {
    before(site, "YYY-istio-cni.conf", ISTIOS);
}

fn istio_alone(site: &Site) {
    site.put("YYY-istio-cni.conf", ISTIOS);
}

fn istio_in_chain(site: &Site) {
    site.put(LIST, &with(site, &[json!({ "type": "istio-cni" })]));
}

fn istio_lives(site: &Site) {
    istio_in_chain(site);
    let listener = UnixListener::bind(site.path("/run/gybe/istio/log.sock")).unwrap();
    // It listens for as long as this process lives.
    std::mem::forget(listener);
}

fn ambient_in_chain(site: &Site) {
    site.put(LIST, &with(site, &[json!({ "type": "istio-cni", "ambient_enabled": true })]));
}

fn entry_in_the_middle(site: &Site) {
    site.put(LIST, &with(site, &[ours(), json!({ "type": "tuning" })]));
}

fn entry_twice(site: &Site) {
    site.put(LIST, &with(site, &[ours(), ours()]));
}

fn entry_that_is_refused(site: &Site) {
    site.put(LIST, &with(site, &[json!({ "type": "gybe-cni", "backend": "nftt" })]));
}

fn entry_in_another_list(site: &Site) {
    primary(site);
    site.put("20-other.conflist", &with(site, &[ours()]));
}

fn another_before_the_entry(site: &Site) {
    before(site, "05-other.conflist", &list(site));
    site.put(LIST, &with(site, &[ours()]));
}

fn single_and_list(site: &Site) {
    one_single(site);
    primary(site);
}

fn nothing(_: &Site) {}

fn inlined_only(site: &Site) {
    site.put(LIST, &saying(site, "loadOnlyInlinedPlugins", Value::Bool(true)));
}

fn primary_and_elsewhere(site: &Site) {
    primary(site);
    let plugin = site.path("/run/gybe/else/bridge");
    fs::write(&plugin, "#!/bin/sh\n").unwrap();
    fs::set_permissions(plugin, Permissions::from_mode(0o755)).unwrap();
}

/// The entry is from before the probe's first report.
fn entry_and_elsewhere(site: &Site) {
    primary_and_elsewhere(site);
    site.put(LIST, &with(site, &[ours()]));
}

fn without_the_primarys(site: &Site) {
    primary(site);
    for plugin in ["bridge", "portmap"] {
        fs::remove_file(site.path(config::BIN_DIR).join(plugin)).unwrap();
    }
}

fn names_are_taken(site: &Site) {
    one_single(site);
    site.put("10-net.conflist", &list(site));
    site.put("10-net.conf.conflist", &list(site));
}

pub(crate) fn rows() -> Vec<Row> {
    let is = Row::of;
    let pinned = |name, settings, is_met, make| Row::of(name, is_met, make).set(settings);
    vec![
        is("a list", true, primary),
        is("a list", true, primary).by(OLD),
        is("a single .conf", true, one_single),
        is("a single .conf", true, one_single).by(OLD),
        is("a single .json", true, json_file),
        is("two lists", true, two_lists),
        is("a .conf and a list of its name", true, single_and_list),
        is("a single .conf whose names as a list are taken", false, names_are_taken),
        is("no conf file", false, nothing),
        is("half a file first", false, half_before),
        is("half a file first", false, half_before).by(OLD),
        is("half a file behind", true, broken_behind),
        is("an empty file first", false, empty_before),
        is("a list without plugins first", false, no_plugins_before),
        is("a list without a name first", false, no_name_before),
        is("an array first", false, array_before),
        is("a .conf without a type first", false, no_type_before),
        is("a list with a comment first", false, comment_before),
        is("a list with a byte order mark first", false, byte_order_mark_before),
        is("a broken file called .conf", false, hidden_before),
        is("a broken .bak first", true, backup_before),
        is("a broken .CONFLIST first", true, upper_case_before),
        is("a directory called .conflist first", true, directory_before),
        is("a list of more than 1 MiB first", false, large_before),
        is("a file of another user's first, agent without capabilities", false, unreadable_before)
            .run_by(WITHOUT_CAPABILITIES),
        is("a file of another user's first, agent without capabilities", false, unreadable_before)
            .run_by(WITHOUT_CAPABILITIES)
            .by(OLD),
        is("a file of another user's behind, agent without capabilities", true, unreadable_behind)
            .run_by(WITHOUT_CAPABILITIES),
        is("a link first, whose end the agent does not see", false, link_before).run_by(WITHOUT_LINKS),
        is("a link first, whose end the agent does not see", false, link_before)
            .run_by(WITHOUT_LINKS)
            .by(OLD),
        is("a link first", false, link_before),
        is("a link without an end first", false, dangling_before),
        is("a link without an end behind", true, link_behind),
        is("another's drop-in", true, drop_in_of_another),
        is("a drop-in of another user's, agent without capabilities", false, unreadable_drop_in)
            .run_by(WITHOUT_CAPABILITIES),
        is(
            "a network's directory of another user's, agent without capabilities",
            false,
            unreadable_directory,
        )
        .run_by(WITHOUT_CAPABILITIES),
        is("a broken drop-in", false, broken_drop_in),
        is("a broken drop-in", true, broken_drop_in).by(OLD),
        is("a file with istio-cni alone first", false, istio_before),
        is("a file with istio-cni alone behind", true, istio_behind),
        is("a file with istio-cni alone, and no other", false, istio_alone),
        is("istio-cni in the chain, its agent gone", true, istio_in_chain),
        is("istio-cni in the chain, its agent alive", false, istio_lives),
        is("istio-cni in the chain, for ambient mode", false, ambient_in_chain),
        is("our entry before another plugin", true, entry_in_the_middle),
        is("our entry twice", true, entry_twice),
        is("an entry that the plugin refuses", true, entry_that_is_refused),
        is("our entry in a list that is not taken", true, entry_in_another_list),
        pinned("the taken list is pinned", &[("conf_name", LIST)], true, primary),
        pinned("a list behind another is pinned", &[("conf_name", LIST)], false, another_before_the_entry),
        pinned("a file is pinned that is not there", &[("conf_name", "30-x.conflist")], false, primary),
        pinned("standalone without Multus", STANDALONE, false, primary),
        Row {
            environment: &[("CHAINED_CNI_PLUGIN", "false")],
            flags: &["--shape", "standalone"],
            ..is("CHAINED_CNI_PLUGIN=false without Multus", false, primary)
        },
        pinned("standalone, and no other network", STANDALONE, false, nothing),
        pinned(
            "standalone under a name that sorts first",
            &[("shape", "standalone"), ("conf_name", "00-mesh.conf")],
            false,
            primary,
        ),
        pinned("drop-in", DROP_IN, true, primary),
        pinned("drop-in, and a runtime that reads none", DROP_IN, false, primary).by(OLD),
        pinned("drop-in, and a single .conf", DROP_IN, false, one_single),
        pinned("drop-in, and a list that takes none", DROP_IN, false, inlined_only),
        Row {
            bin: "/run/gybe/else",
            ..is("programs are placed where the runtime does not look", false, primary)
        },
        Row {
            bin: "/run/gybe/else",
            report: Report::Absent,
            ..is("the same, and nothing is known about the runtime", false, primary)
        },
        Row {
            bin: "/run/gybe/else",
            ..is("the same, with a plugin of the primary's there", false, primary_and_elsewhere)
        },
        Row {
            bin: "/run/gybe/else",
            ..is("the same, and our entry stands in the list", false, entry_and_elsewhere)
        },
        Row { report: Report::Absent, ..is("nothing is known about the runtime", true, primary) },
        Row {
            report: Report::Absent,
            ..is("none of the primary's plugins is there", false, without_the_primarys)
        },
    ]
}
