//! `/metrics`: the incumbent's names, and ours. Pure.

mod exposition;

use super::bulletin::{Healed, Posted, Stage};
use super::calls::Counted;
use super::incumbent::IstioAgent;
use super::view::Seen;
use crate::host::directory::Directory;
use crate::probe::node_backend::{NodeBackend, Verdict};
use exposition::{Exposition, Kind};
use gybe_netfilter::backend::BackendKind;
use std::time::SystemTime;

/// All of it, in Prometheus' text format.
pub(crate) fn text(seen: &Seen) -> String {
    let mut out = Exposition::default();
    process(seen, &mut out);
    incumbents(seen, &mut out);
    node(&seen.posted, &mut out);
    turns(&seen.posted, &mut out);
    healing(&seen.posted, &mut out);
    facts(seen, &mut out);
    backend(seen.posted.backend.as_ref(), &mut out);
    calls(&seen.calls, &mut out);
    out.text()
}

fn process(seen: &Seen, out: &mut Exposition) {
    out.family("gybe_build_info", Kind::Gauge, "1, labelled with the version that runs.");
    out.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    if let Some(start) = seen.start_time {
        let help = "Start time of the process since unix epoch in seconds.";
        out.family("process_start_time_seconds", Kind::Gauge, help);
        out.sample(&[], start);
    }
    out.family("gybe_sockets_lost_total", Kind::Counter, "How often a socket of the agent was taken away.");
    for (socket, count) in seen.sockets_lost {
        out.sample(&[("socket", socket)], count);
    }
}

/// `istio_cni_repair_pods_repaired_total`, `nodeagent_reconcile_events_total` and `ztunnel_connected`
/// are left out: there is no repair and no ambient mode, and a 0 would say that there is.
fn incumbents(seen: &Seen, out: &mut Exposition) {
    let counts = &seen.posted.counts;
    out.family("istio_cni_installs_total", Kind::Counter, "Passes of the installer by their result.");
    for (result, count) in [
        ("SUCCESS", counts.successes),
        ("COPY_BINARIES_FAILURE", counts.program_failures),
        ("CREATE_KUBECONFIG_FAILURE", counts.kubeconfig_failures),
        ("CREATE_CNI_CONFIG_FAILURE", counts.conf_failures),
    ] {
        out.sample(&[("result", result)], count);
    }
    let is_in = seen.posted.stage == Stage::In && seen.posted.lacks().is_empty();
    out.family("istio_cni_install_ready", Kind::Gauge, "Whether the node is as wanted, and in the chain.");
    out.sample(&[], u64::from(is_in));
    out.family("istio_cni_plugin_requests_total", Kind::Counter, "Questions of the plugin by their answer.");
    for (code, count) in seen.answers {
        out.sample(&[("response_code", &code.to_string())], count);
    }
}

fn node(posted: &Posted, out: &mut Exposition) {
    let is_left = matches!(posted.stage, Stage::Left { .. });
    out.family("gybe_left", Kind::Gauge, "Whether the node is out of the chain, as mode: leave asks.");
    out.sample(&[], u64::from(is_left));
    out.family("gybe_settings_followed", Kind::Gauge, "Whether the ConfigMap as it is now is followed.");
    out.sample(&[], u64::from(posted.settings.is_none()));
    out.family("gybe_istio_cni_agent", Kind::Gauge, "Whether istio-cni's agent may live on this node.");
    out.sample(&[], u64::from(posted.istio.is_some_and(IstioAgent::may_live)));
    if let Some(left) = posted.token_ends.map(|end| end.duration_since(SystemTime::now()).unwrap_or_default())
    {
        out.family(
            "gybe_kubeconfig_token_seconds",
            Kind::Gauge,
            "For how long the kubeconfig's token is good.",
        );
        out.sample(&[], left.as_secs());
    }
}

/// By what it happened to: the entry in the chain, or the programs.
fn healing(posted: &Posted, out: &mut Exposition) {
    let mut family = |name, kind, help, value: &dyn Fn(Directory) -> String| {
        out.family(name, kind, help);
        for (what, directory) in [("conf", Directory::Conf), ("programs", Directory::Programs)] {
            out.sample(&[("what", what)], value(directory));
        }
    };
    let healing = |directory| *posted.counts.healing.of(directory);
    for (name, help, count) in [
        (
            "gybe_undone_total",
            "Writes of others that undid it, as far as they were seen.",
            (|it| it.tally.rewrites) as fn(Healed) -> u64,
        ),
        ("gybe_healed_total", "Passes that put it back.", |it| it.tally.repairs),
        ("gybe_fights_total", "How often it was undone more than five times in a minute.", |it| it.fights),
    ] {
        family(name, Kind::Counter, help, &|directory| count(healing(directory)).to_string());
    }
    family(
        "gybe_healing_seconds_total",
        Kind::Counter,
        "How long putting it back took, all together.",
        &|directory| healing(directory).took.as_secs_f64().to_string(),
    );
    family("gybe_healing_longest_seconds", Kind::Gauge, "The longest of them.", &|directory| {
        healing(directory).longest.as_secs_f64().to_string()
    });
    family("gybe_fight", Kind::Gauge, "Whether somebody keeps undoing it.", &|directory| {
        u64::from(posted.fights.of(directory).is_some()).to_string()
    });
}

fn turns(posted: &Posted, out: &mut Exposition) {
    out.family("gybe_passes_total", Kind::Counter, "Turns of the loop that keeps the node.");
    out.sample(&[], posted.counts.turns);
    out.family("gybe_watch_told", Kind::Gauge, "1: the kernel tells of changes. 0: a look every second.");
    out.sample(&[], u64::from(posted.is_told));
}

fn facts(seen: &Seen, out: &mut Exposition) {
    out.family("gybe_pods", Kind::Gauge, "Pods of this node that are known.");
    out.sample(&[], seen.pods.pods);
    out.family("gybe_pods_known", Kind::Gauge, "Whether questions about pods can be answered.");
    out.sample(&[], u64::from(seen.pods.missing.is_none()));
    if let Some(watch) = &seen.pods.watch {
        out.family("gybe_watch_age_seconds", Kind::Gauge, "Since the API server last told of pods.");
        out.sample(&[], watch.silent.as_secs_f64());
        out.family(
            "gybe_watch_reconnects_total",
            Kind::Counter,
            "How often the watch of pods was opened again.",
        );
        out.sample(&[], watch.reconnects);
        let help = "Requests about pods that failed, by HTTP status; none is no answer that can be read.";
        out.family("gybe_api_errors_total", Kind::Counter, help);
        for (status, count) in &watch.errors {
            let status = status.map_or("none".to_owned(), |status| status.to_string());
            out.sample(&[("status", &status)], *count);
        }
    }
}

fn backend(backend: Option<&NodeBackend>, out: &mut Exposition) {
    let writes = backend.and_then(NodeBackend::writes);
    out.family("gybe_backend", Kind::Gauge, "What writes the rules of this node's pods.");
    for kind in BackendKind::ALL {
        out.sample(&[("backend", kind.name())], u64::from(writes == Some(kind)));
    }
    out.family("gybe_probe_usable", Kind::Gauge, "Whether the probe found that it works.");
    let works = backend.is_some_and(|backend| matches!(backend.verdict, Verdict::Works(_)));
    out.sample(&[], u64::from(works));
}

fn calls(counted: &Counted, out: &mut Exposition) {
    out.family("gybe_plugin_calls_total", Kind::Counter, "Calls of the plugin by verb and decision.");
    for ((verb, decision), count) in &counted.calls {
        out.sample(&[("verb", verb), ("decision", decision)], *count);
    }
    out.family("gybe_plugin_call_seconds", Kind::Histogram, "How long they took, by phase.");
    for ((verb, phase), histogram) in &counted.took {
        out.histogram(&[("verb", verb), ("phase", phase)], histogram);
    }
}
