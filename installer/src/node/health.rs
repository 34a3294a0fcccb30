//! `/healthz`, `/readyz` and `/left`: what a probe, a person and the chart's hook are told. Pure.

use super::bulletin::Stage;
use super::page::Page;
use super::view::Seen;
use std::fmt::Write as _;

/// The answer to a request for `path`; none for any other.
pub(crate) fn page(path: &str, seen: &Seen) -> Option<Page> {
    match path {
        "/healthz" => {
            let ends = seen.is_beyond_help();
            Some(ends.map_or_else(|| Page::good("ok\n"), |why| Page::bad(format!("{why}\n"))))
        }
        "/readyz" => Some(ready(seen)),
        "/left" => Some(left(seen)),
        _ => None,
    }
}

/// Ready: nothing is missing. Whatever else should be known stands below it.
fn ready(seen: &Seen) -> Page {
    let missing = seen.missing();
    let mut text = String::new();
    // A String takes whatever is written to it.
    let _ = match missing.is_empty() {
        true => writeln!(text, "ready"),
        false => writeln!(text, "not ready\n- {}", missing.join("\n- ")),
    };
    let settings = seen.posted.settings.iter().map(|why| format!("the ConfigMap is not followed: {why}"));
    let fights = &seen.posted.fights;
    let fights = fights.conf.iter().chain(&fights.programs).cloned();
    for note in settings.chain(fights).chain(seen.posted.notes.iter().cloned()) {
        let _ = writeln!(text, "note: {note}");
    }
    if missing.is_empty() { Page::good(text) } else { Page::bad(text) }
}

/// Whether the node's chain is without us, and nothing more has to be waited for before the DaemonSet
/// may be deleted.
fn left(seen: &Seen) -> Page {
    match seen.posted.stage {
        Stage::Left { plugin_stays: false } => Page::good("left; nothing stays\n"),
        Stage::Left { plugin_stays: true } => Page::good(
            "left; gybe-cni stays, to answer for sandboxes that live or were being made; when they are gone this \
                 agent removes it, or gybe uninstall on the node\n",
        ),
        Stage::Leaving => Page::bad(format!("leaving\n- {}\n", seen.posted.missing.join("\n- "))),
        Stage::In | Stage::Starting => Page::bad("not asked to leave\n"),
    }
}
