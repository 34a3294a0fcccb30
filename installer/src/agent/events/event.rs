//! An event: what it is about, its reason and its note; and its form in the API (`events.k8s.io/v1`). Pure.

use gybe_plugin::args::PodRef;
use gybe_plugin::timestamp;
use serde_json::{Map, Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// An event about the node or one of its pods. Equal events are repeats, and form a series.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    pub(super) regarding: Regarding,
    pub(super) reason: Reason,
    pub(super) note: Note,
}

/// An event about a pod of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodEvent {
    pub(crate) pod: PodRef,
    pub(crate) reason: Reason,
    pub(crate) note: String,
}

/// A request to write an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Write {
    /// The number of the event in the table.
    pub(super) id: u64,
    pub(super) request: EventRequest,
    pub(super) event: Event,
    pub(super) name: String,
    pub(super) first: SystemTime,
    pub(super) last: SystemTime,
    pub(super) count: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EventRequest {
    Create,
    Repeat,
}

/// The object that an event is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Regarding {
    Pod(PodRef),
    Node,
}

/// Why there is an event. Operators and alerts select events by these names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The plugin refused an ADD.
    RedirectionRefused,
    /// A running pod was not redirected, and its rules were written.
    RedirectionRepaired,
    /// A running pod was not redirected, and its rules could not be written.
    RepairFailed,
    /// A pod that was not redirected was deleted; the incumbent's name.
    DeleteBrokenPod,
    /// A pod that is not redirected was labelled; the incumbent's name.
    LabelBrokenPod,
    /// A pod started now would not be redirected.
    RedirectionLost,
    /// A pod started now would be redirected again.
    RedirectionRestored,
    /// Another program undoes our changes again and again.
    ConflictBegan,
    ConflictEnded,
    TaintRemoved,
    TaintSet,
}

/// The text of an event: at most as long as the API server accepts, without control characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Note(String);

/// `NoteLengthLimit` of Kubernetes' `pkg/apis/core/validation/events.go`, in bytes.
const MAX_NOTE: usize = 1024;
/// The limit of `reportingInstance` there.
const MAX_INSTANCE: usize = 128;
/// A uid has 36 characters; that of a static pod has 32.
const MAX_UID: usize = 64;
/// With the time in nanoseconds an event's name has at most 253 characters.
const MAX_NAME_PREFIX: usize = 220;
/// The plugin truncates `args` to so many characters (`gybe_plugin::log::shorten`).
const MAX_ARGS: usize = 300;
const CONTROLLER: &str = "gybe.dev/agent";

impl Reason {
    fn name(self) -> &'static str {
        match self {
            Self::RedirectionRefused => "RedirectionRefused",
            Self::RedirectionRepaired => "RedirectionRepaired",
            Self::RepairFailed => "RepairFailed",
            Self::DeleteBrokenPod => "DeleteBrokenPod",
            Self::LabelBrokenPod => "LabelBrokenPod",
            Self::RedirectionLost => "RedirectionLost",
            Self::RedirectionRestored => "RedirectionRestored",
            Self::ConflictBegan => "ConflictBegan",
            Self::ConflictEnded => "ConflictEnded",
            Self::TaintRemoved => "TaintRemoved",
            Self::TaintSet => "TaintSet",
        }
    }

    /// The event's `type`.
    fn kind(self) -> &'static str {
        match self {
            Self::RedirectionRefused
            | Self::RepairFailed
            | Self::DeleteBrokenPod
            | Self::LabelBrokenPod
            | Self::RedirectionLost
            | Self::ConflictBegan
            | Self::TaintSet => "Warning",
            Self::RedirectionRepaired
            | Self::RedirectionRestored
            | Self::ConflictEnded
            | Self::TaintRemoved => "Normal",
        }
    }

    /// What was done, or was attempted.
    fn action(self) -> &'static str {
        match self {
            Self::RedirectionRefused => "Add",
            Self::RedirectionRepaired | Self::RepairFailed => "Repair",
            Self::DeleteBrokenPod => "Delete",
            Self::LabelBrokenPod => "Label",
            Self::RedirectionLost | Self::RedirectionRestored | Self::ConflictBegan | Self::ConflictEnded => {
                "Reconcile"
            }
            Self::TaintRemoved | Self::TaintSet => "Taint",
        }
    }
}

impl Note {
    fn new(text: &str) -> Self {
        let mut note = String::new();
        for c in text.chars().map(|c| if c.is_control() { ' ' } else { c }) {
            if note.len() + c.len_utf8() > MAX_NOTE {
                break;
            }
            note.push(c);
        }
        Self(note)
    }
}

impl PodEvent {
    /// Returns the event of a plugin's log line that reports a refused ADD; none for any other line.
    pub(crate) fn of_refusal(line: &Map<String, Value>) -> Option<Self> {
        let text = |key: &str| line.get(key)?.as_str();
        if (text("verb"), text("decision")) != (Some("ADD"), Some("error")) {
            return None;
        }
        let id = text("id").filter(|id| is_error_id(id))?;
        let args = text("args")?;
        // The last item may be truncated, and then names another pod or none.
        let is_whole = args.chars().count() < MAX_ARGS;
        let args = if is_whole { args } else { args.rsplit_once(';')?.0 };
        let pod = PodRef::from_args(args).ok()??;
        let hint = text("hint").filter(|hint| !hint.is_empty());
        let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
        let note = format!("{id}: {}{hint}", text("cause")?);
        Some(Self { pod, reason: Reason::RedirectionRefused, note })
    }
}

fn is_error_id(text: &str) -> bool {
    let number = text.strip_prefix("GYBE-ADD-");
    number.is_some_and(|number| number.len() == 3 && number.bytes().all(|byte| byte.is_ascii_digit()))
}

impl From<PodEvent> for Event {
    fn from(PodEvent { mut pod, reason, note }: PodEvent) -> Self {
        let is_uid = |uid: &String| uid.len() <= MAX_UID && uid.bytes().all(|byte| byte.is_ascii_graphic());
        pod.uid = pod.uid.filter(is_uid);
        Self { regarding: Regarding::Pod(pod), reason, note: Note::new(&note) }
    }
}

impl Event {
    /// Returns an event about this node.
    pub(crate) fn of_node(reason: Reason, note: &str) -> Self {
        Self { regarding: Regarding::Node, reason, note: Note::new(note) }
    }

    /// The event's namespace: the pod's, or the one for objects without a namespace.
    pub(super) fn namespace(&self) -> &str {
        match &self.regarding {
            Regarding::Pod(pod) => pod.namespace.as_str(),
            Regarding::Node => "default",
        }
    }

    /// Returns a name that no other event has.
    pub(super) fn new_name(&self, now: SystemTime) -> String {
        let name = match &self.regarding {
            Regarding::Pod(pod) => pod.name.as_str(),
            Regarding::Node => "gybe-node",
        };
        let prefix = name.get(..MAX_NAME_PREFIX).unwrap_or(name).trim_end_matches(['.', '-']);
        let nanos = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        format!("{prefix}.{nanos:x}")
    }
}

/// Returns the object to create. `instance` names this agent.
pub(super) fn created(event: &Event, write: &Write, node: &str, instance: &str) -> Value {
    let regarding = match &event.regarding {
        Regarding::Pod(pod) => json!({
            "apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace.as_str(),
            "name": pod.name.as_str(), "uid": pod.uid.as_deref().unwrap_or_default(),
        }),
        // `kubectl describe node` selects a node's events by this uid, as the kubelet sets it.
        Regarding::Node => json!({ "apiVersion": "v1", "kind": "Node", "name": node, "uid": node }),
    };
    let reason = event.reason;
    let mut object = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": { "namespace": event.namespace(), "name": write.name },
        "eventTime": timestamp(write.first),
        "reportingController": CONTROLLER,
        "reportingInstance": instance.get(..MAX_INSTANCE).unwrap_or(instance),
        "action": reason.action(),
        "reason": reason.name(),
        "regarding": regarding,
        "note": event.note.0,
        "type": reason.kind(),
    });
    // A series has at least two.
    if let (Some(object), 2..) = (object.as_object_mut(), write.count) {
        object.insert("series".to_owned(), series(write));
    }
    object
}

/// Returns the merge patch that counts the repeats: the other fields of an event cannot change.
pub(super) fn repeated(write: &Write) -> Value {
    json!({ "series": series(write) })
}

fn series(write: &Write) -> Value {
    json!({ "count": write.count, "lastObservedTime": timestamp(write.last) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(args: &str) -> Map<String, Value> {
        let line = json!({
            "verb": "ADD", "decision": "error", "id": "GYBE-ADD-011", "code": 11, "args": args,
            "cause": "no source of facts answered", "hint": "is the agent running?",
        });
        line.as_object().unwrap().clone()
    }

    const ARGS: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0;K8S_POD_UID=u-1";

    #[test]
    fn a_refused_add_is_an_event_with_the_error_id_the_cause_and_the_hint() {
        let event = PodEvent::of_refusal(&line(ARGS)).unwrap();
        assert_eq!(event.pod.to_string(), "shop/cart-0");
        assert_eq!(event.pod.uid.as_deref(), Some("u-1"));
        assert_eq!(event.note, "GYBE-ADD-011: no source of facts answered; is the agent running?");
    }

    #[test]
    fn a09_other_lines_and_foreign_values_are_no_event() {
        for (key, value) in [
            ("verb", json!("DEL")),
            ("decision", json!("redirect")),
            ("id", json!("GYBE-ADD-1\n1")),
            ("id", json!(7)),
            ("cause", Value::Null),
            ("args", json!("K8S_POD_NAME=../x;K8S_POD_NAMESPACE=shop")),
            ("args", json!("")),
        ] {
            let mut line = line(ARGS);
            line.insert(key.to_owned(), value.clone());
            assert_eq!(PodEvent::of_refusal(&line), None, "{key} {value}");
        }
    }

    #[test]
    fn a_truncated_name_is_no_event_and_a_truncated_uid_is_omitted() {
        let truncated = |args: String| args.chars().take(MAX_ARGS).collect::<String>();
        let name = "c".repeat(253);
        let long =
            truncated(format!("K8S_POD_NAMESPACE={};K8S_POD_NAME={name};K8S_POD_UID=u-1", "s".repeat(63)));
        assert_eq!(PodEvent::of_refusal(&line(&long)), None);
        let name = "c".repeat(240);
        let long =
            truncated(format!("K8S_POD_NAMESPACE=s;K8S_POD_NAME={name};K8S_POD_UID={}", "u".repeat(36)));
        let event = PodEvent::of_refusal(&line(&long)).unwrap();
        assert_eq!((event.pod.name.as_str(), event.pod.uid), (name.as_str(), None));
    }

    #[test]
    fn a_note_is_bounded_and_has_no_control_characters() {
        let pod = PodRef::from_args(ARGS).unwrap().unwrap();
        let event = |note: &str, uid: &str| {
            let pod = PodRef { uid: Some(uid.to_owned()), ..pod.clone() };
            Event::from(PodEvent { pod, reason: Reason::RedirectionRefused, note: note.to_owned() })
        };
        assert_eq!(event("a\u{1b}[31m\nb", "u").note.0, "a [31m b");
        let long = event(&"ü".repeat(2000), "u").note.0;
        assert_eq!((long.len(), long.chars().all(|c| c == 'ü')), (MAX_NOTE, true));
        for uid in ["a b", "u\n", &"u".repeat(65)] {
            let Regarding::Pod(pod) = event("x", uid).regarding else { unreachable!() };
            assert_eq!(pod.uid, None, "{uid:?}");
        }
    }

    #[test]
    fn the_longest_name_is_a_valid_object_name() {
        for name in ["c".repeat(253), format!("{}.{}", "c".repeat(219), "d".repeat(30))] {
            let args = format!("K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name}");
            let pod = PodRef::from_args(&args).unwrap().unwrap();
            let event =
                Event::from(PodEvent { pod, reason: Reason::RedirectionRefused, note: String::new() });
            let name = event.new_name(SystemTime::now());
            assert!(gybe_plugin::args::PodName::parse(&name).is_ok(), "{name}");
        }
    }
}
