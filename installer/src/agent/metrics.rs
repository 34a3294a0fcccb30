//! The page `/metrics`, with the incumbent's metric names and ours, in Prometheus' text format, version 0.0.4. A library
//! would add registries and atomics for numbers that other modules keep. Pure.

use super::ambient::AmbientStatus;
use super::istio::IstioAgent;
use super::plugin_calls::CallCounts;
use super::status::{AgentSnapshot, Phase, RepairCounts, Status, UnreadyReason};
use crate::agent::histogram::Histogram;
use crate::host::observe::Directory;
use crate::probe::node_backend::{BackendVerdict, NodeBackend};
use gybe_netfilter::apply::backend::BackendKind;
use std::fmt::{Display, Write as _};
use std::time::SystemTime;

pub(crate) fn text(agent: &AgentSnapshot) -> String {
    let mut out = Exposition::default();
    process(agent, &mut out);
    incumbent(agent, &mut out);
    node(agent, &mut out);
    turns(&agent.status, &mut out);
    repairs(&agent.status, &mut out);
    pod_repairs(agent, &mut out);
    events(agent.events_dropped, &mut out);
    ambient(agent.ambient.as_ref(), &mut out);
    pods(agent, &mut out);
    backend(agent.status.report.backend.as_ref(), &mut out);
    calls(&agent.calls, &mut out);
    out.text()
}

fn process(agent: &AgentSnapshot, out: &mut Exposition) {
    out.family("gybe_build_info", Kind::Gauge, "1, labelled with the version that runs.");
    out.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    if let Some(start) = agent.start_time {
        let help = "Start time of the process since unix epoch in seconds.";
        out.family("process_start_time_seconds", Kind::Gauge, help);
        out.sample(&[], start);
    }
    out.family(
        "gybe_sockets_lost_total",
        Kind::Counter,
        "How often another program removed a socket of the agent.",
    );
    for (socket, count) in agent.sockets_lost {
        out.sample(&[("socket", socket)], count);
    }
}

/// `nodeagent_reconcile_events_total` is left out: running pods are not enrolled.
fn incumbent(agent: &AgentSnapshot, out: &mut Exposition) {
    let counts = &agent.status.counts;
    out.family("istio_cni_installs_total", Kind::Counter, "Passes of the installer by their result.");
    for (result, count) in [
        ("SUCCESS", counts.successes),
        ("COPY_BINARIES_FAILURE", counts.program_failures),
        ("CREATE_KUBECONFIG_FAILURE", counts.kubeconfig_failures),
        ("CREATE_CNI_CONFIG_FAILURE", counts.conf_failures),
    ] {
        out.sample(&[("result", result)], count);
    }
    let is_ready = agent.status.report.phase == Phase::Installed && agent.status.missing().is_empty();
    out.family(
        "istio_cni_install_ready",
        Kind::Gauge,
        "Whether the node is in its desired state, with the entry of gybe-cni in the chain.",
    );
    out.sample(&[], u64::from(is_ready));
    out.family("istio_cni_plugin_requests_total", Kind::Counter, "Queries of the plugin by their response.");
    for (code, count) in agent.queries {
        out.sample(&[("response_code", &code.to_string())], count);
    }
}

fn node(agent: &AgentSnapshot, out: &mut Exposition) {
    let report = &agent.status.report;
    let unready = agent.unready();
    out.family("gybe_unready", Kind::Gauge, "Whether the agent is not ready for this reason.");
    for reason in UnreadyReason::OF_LEADER {
        let is_one = unready.iter().any(|(found, _)| *found == reason);
        out.sample(&[("reason", reason.name())], u64::from(is_one));
    }
    let is_left = matches!(report.phase, Phase::Uninstalled { .. });
    out.family(
        "gybe_left",
        Kind::Gauge,
        "Whether the entry of gybe-cni is out of the chain, as mode: leave requests.",
    );
    out.sample(&[], u64::from(is_left));
    out.family("gybe_settings_followed", Kind::Gauge, "Whether the current ConfigMap is in use.");
    out.sample(&[], u64::from(agent.settings.error.is_none()));
    out.family("gybe_istio_cni_agent", Kind::Gauge, "Whether istio-cni's agent may run on this node.");
    out.sample(&[], u64::from(report.istio.is_some_and(IstioAgent::may_run)));
    if let Some(left) =
        report.token_expires.map(|end| end.duration_since(SystemTime::now()).unwrap_or_default())
    {
        out.family(
            "gybe_kubeconfig_token_seconds",
            Kind::Gauge,
            "The time until the kubeconfig's token expires.",
        );
        out.sample(&[], left.as_secs());
    }
}

/// The label `what`: the entry in the chain, or the programs.
fn repairs(status: &Status, out: &mut Exposition) {
    let mut family = |name, kind, help, value: &dyn Fn(Directory) -> String| {
        out.family(name, kind, help);
        for (what, directory) in [("conf", Directory::Conf), ("programs", Directory::Programs)] {
            out.sample(&[("what", what)], value(directory));
        }
    };
    let repairs = |directory| *status.counts.repairs.of(directory);
    for (name, help, count) in [
        (
            "gybe_foreign_rewrites_total",
            "Observed foreign rewrites of the entry or of a program.",
            (|it| it.rewrites.rewrites) as fn(RepairCounts) -> u64,
        ),
        ("gybe_repairs_total", "Passes that repaired the entry or a program.", |it| it.rewrites.repairs),
        ("gybe_conflicts_total", "Conflicts: more than five foreign rewrites in a minute.", |it| {
            it.conflicts
        }),
    ] {
        family(name, Kind::Counter, help, &|directory| count(repairs(directory)).to_string());
    }
    family("gybe_repair_seconds_total", Kind::Counter, "The time of all repairs together.", &|directory| {
        repairs(directory).time.as_secs_f64().to_string()
    });
    family("gybe_repair_longest_seconds", Kind::Gauge, "The time of the longest repair.", &|directory| {
        repairs(directory).longest.as_secs_f64().to_string()
    });
    family(
        "gybe_conflict",
        Kind::Gauge,
        "Whether there is a conflict over the entry or a program.",
        &|directory| u64::from(status.report.conflicts.of(directory).is_some()).to_string(),
    );
}

/// Left out where no process repairs pods.
fn pod_repairs(agent: &AgentSnapshot, out: &mut Exposition) {
    let Some(repairs) = agent.pod_repairs else { return };
    out.family(
        "istio_cni_repair_pods_repaired_total",
        Kind::Counter,
        "Running pods that were not redirected, by what was done and its result; repairs since the process that repairs started.",
    );
    for (result, count) in [("success", repairs.repaired), ("fail", repairs.failed)] {
        out.sample(&[("type", "repair"), ("result", result)], count);
    }
    for (kind, counts) in [("delete", agent.broken_pods.deleted), ("label", agent.broken_pods.labelled)] {
        for (result, count) in [("success", counts.success), ("skip", counts.skip), ("fail", counts.fail)] {
            out.sample(&[("type", kind), ("result", result)], count);
        }
    }
    let Some(not_redirected) = repairs.not_redirected() else { return };
    let help = "Running pods that should be redirected and are not, or of which that is not known, after the last pass.";
    out.family("gybe_pods_not_redirected", Kind::Gauge, help);
    out.sample(&[], not_redirected);
}

/// Left out where ambient mode is off. The first name is the incumbent's.
fn ambient(ambient: Option<&AmbientStatus>, out: &mut Exposition) {
    let Some(AmbientStatus { ztunnel, annotations, .. }) = ambient else { return };
    out.family("ztunnel_connected", Kind::Gauge, "Connected ztunnels.");
    out.sample(&[], ztunnel.connected);
    out.family("gybe_ambient_pods", Kind::Gauge, "Pods with which this agent serves ztunnel.");
    out.sample(&[], ztunnel.pods - ztunnel.without_netns);
    let help = "Pods that an earlier agent may have handed over; ztunnel keeps those that it knows.";
    out.family("gybe_ambient_pods_kept", Kind::Gauge, help);
    out.sample(&[], ztunnel.without_netns);
    out.family(
        "gybe_ambient_pods_pending",
        Kind::Gauge,
        "Ambient pods that the newest ztunnel has not acknowledged.",
    );
    out.sample(&[], ztunnel.pending);
    let counts = &ztunnel.counts;
    for (name, help, count) in [
        ("gybe_ztunnel_connections_total", "Connections of ztunnels.", counts.connections),
        ("gybe_ztunnel_refusals_total", "Requests that ztunnel refused.", counts.refused),
        (
            "gybe_ambient_annotation_failures_total",
            "Failed requests to write or remove the annotation ambient.istio.io/redirection.",
            annotations.failures,
        ),
        (
            "gybe_ztunnel_late_total",
            "Connections closed because ztunnel did not answer in time.",
            counts.late,
        ),
    ] {
        out.family(name, Kind::Counter, help);
        out.sample(&[], count);
    }
    let help = "Time from a request to ztunnel's acknowledgement.";
    out.family("gybe_ztunnel_acknowledgement_seconds", Kind::Histogram, help);
    out.histogram(&[], &counts.acknowledged);
}

/// Left out without a cluster.
fn events(dropped: Option<u64>, out: &mut Exposition) {
    let Some(dropped) = dropped else { return };
    out.family("gybe_events_dropped_total", Kind::Counter, "Kubernetes events that were never written.");
    out.sample(&[], dropped);
}

fn turns(status: &Status, out: &mut Exposition) {
    out.family("gybe_passes_total", Kind::Counter, "Turns of the reconcile loop.");
    out.sample(&[], status.counts.turns);
    let help = "1: the kernel reports changes. 0: the directories are polled every second.";
    out.family("gybe_inotify", Kind::Gauge, help);
    out.sample(&[], u64::from(status.report.is_notified));
}

fn pods(agent: &AgentSnapshot, out: &mut Exposition) {
    out.family("gybe_pods", Kind::Gauge, "Known pods of this node.");
    out.sample(&[], agent.pods.pods);
    out.family("gybe_pods_known", Kind::Gauge, "Whether queries about pods can be answered.");
    out.sample(&[], u64::from(agent.pods.missing.is_none()));
    if let Some(watch) = &agent.pods.watch {
        out.family(
            "gybe_watch_age_seconds",
            Kind::Gauge,
            "Time since the API server last sent something about pods.",
        );
        out.sample(&[], watch.silent.as_secs_f64());
        out.family(
            "gybe_watch_reconnects_total",
            Kind::Counter,
            "How often the watch of pods was opened again.",
        );
        out.sample(&[], watch.reconnects);
        let help = "Time from the assignment of a new pod to this node, in whole seconds of the API server, until the watch, or a \
                    later list, delivered it.";
        out.family("gybe_watch_latency_seconds", Kind::Histogram, help);
        out.histogram(&[], &watch.latency);
        let help = "Failed requests about pods by HTTP status; none: no readable response.";
        out.family("gybe_api_errors_total", Kind::Counter, help);
        for (status, count) in &watch.errors {
            let status = status.map_or("none".to_owned(), |status| status.to_string());
            out.sample(&[("status", &status)], *count);
        }
    }
}

fn backend(backend: Option<&NodeBackend>, out: &mut Exposition) {
    let writes = backend.and_then(NodeBackend::writes);
    out.family("gybe_backend", Kind::Gauge, "The backend that writes the rules of this node's pods.");
    for kind in BackendKind::ALL {
        out.sample(&[("backend", kind.name())], u64::from(writes == Some(kind)));
    }
    out.family("gybe_probe_usable", Kind::Gauge, "Whether the probe found that the backend works.");
    let works = backend.is_some_and(|backend| matches!(backend.verdict, BackendVerdict::Works(_)));
    out.sample(&[], u64::from(works));
}

fn calls(counts: &CallCounts, out: &mut Exposition) {
    out.family("gybe_plugin_calls_total", Kind::Counter, "Calls of the plugin by verb and decision.");
    for ((verb, decision), count) in &counts.calls {
        out.sample(&[("verb", verb), ("decision", decision)], *count);
    }
    out.family("gybe_plugin_call_seconds", Kind::Histogram, "Time of the plugin's calls, by phase.");
    for ((verb, phase), histogram) in &counts.took {
        out.histogram(&[("verb", verb), ("phase", phase)], histogram);
    }
    let help = "Time from the assignment of a pod to this node, in whole seconds of the API server, to the end of its first \
                ADD that redirected it.";
    out.family("gybe_pod_start_seconds", Kind::Histogram, help);
    out.histogram(&[], &counts.redirected.by_add);
    let help = "Time from the ADD of a running pod's sandbox to the repair that redirected it.";
    out.family("gybe_pod_repair_seconds", Kind::Histogram, help);
    out.histogram(&[], &counts.redirected.by_repair);
}

/// Prometheus' text format, version 0.0.4. A library would add registries and atomics for numbers that other modules keep.
#[derive(Debug, Default)]
struct Exposition {
    text: String,
    name: &'static str,
}

/// The type of a metric family.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

type MetricLabels<'a> = &'a [(&'a str, &'a str)];

// Writing to a String cannot fail, so the results of `write!` are ignored.
impl Exposition {
    /// Starts a family; its samples follow.
    fn family(&mut self, name: &'static str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        self.name = name;
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, labels: MetricLabels<'_>, value: impl Display) {
        self.line("", labels, None, value);
    }

    /// Adds a histogram in seconds.
    fn histogram(&mut self, labels: MetricLabels<'_>, histogram: &Histogram) {
        let mut so_far = 0;
        for (bound, count) in histogram.bounds.iter().zip(&histogram.counts) {
            so_far += count;
            self.line("_bucket", labels, Some(&seconds(*bound)), so_far);
        }
        self.line("_bucket", labels, Some("+Inf"), histogram.count);
        self.line("_sum", labels, None, seconds(histogram.sum));
        self.line("_count", labels, None, histogram.count);
    }

    fn line(&mut self, suffix: &str, labels: MetricLabels<'_>, le: Option<&str>, value: impl Display) {
        let _ = write!(self.text, "{}{suffix}", self.name);
        let all = labels.iter().copied().chain(le.map(|le| ("le", le)));
        for (n, (key, label)) in all.enumerate() {
            let open = if n == 0 { "{" } else { "," };
            let _ = write!(self.text, "{open}{key}=\"{label}\"");
        }
        let close = if labels.is_empty() && le.is_none() { "" } else { "}" };
        let _ = writeln!(self.text, "{close} {value}");
    }

    fn text(self) -> String {
        self.text
    }
}

/// Converts microseconds to seconds, without the rounding of binary fractions.
fn seconds(micros: u64) -> String {
    let text = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_is_cumulative_and_in_seconds() {
        let mut out = Exposition::default();
        out.family("x_seconds", Kind::Histogram, "Help.");
        let mut histogram = Histogram { count: 5, sum: 1_500_000, ..Histogram::default() };
        histogram.counts[0] = 2;
        histogram.counts[11] = 2;
        out.histogram(&[("verb", "ADD")], &histogram);
        let text = out.text();
        for line in [
            "# TYPE x_seconds histogram",
            "x_seconds_bucket{verb=\"ADD\",le=\"0.0005\"} 2",
            "x_seconds_bucket{verb=\"ADD\",le=\"2\"} 2",
            "x_seconds_bucket{verb=\"ADD\",le=\"10\"} 4",
            "x_seconds_bucket{verb=\"ADD\",le=\"+Inf\"} 5",
            "x_seconds_sum{verb=\"ADD\"} 1.5",
            "x_seconds_count{verb=\"ADD\"} 5",
        ] {
            assert!(text.lines().any(|there| there == line), "{line} in\n{text}");
        }
    }
}
