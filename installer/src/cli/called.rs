//! By which name and with which first word the program was called. A pod's init container calls it
//! as it would call Istio's image; both become `gybe init`.

use super::answer::Failure;
use crate::host::image::{ISTIO_CNI_TAINT, ISTIO_IPTABLES, ISTIO_IPTABLES_SH};
use crate::pod::init_args::InitArgs;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Whose command line it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Called {
    /// Ours, or the one of an `istio-iptables` of today.
    Gybe,
    /// The bare one of Istio before 1.3, whose image was given flags and no command.
    BareFlags,
}

/// Under this name nothing else is ever done: a caller that waits for a taint to go must not take
/// another command's success for it.
pub(super) fn is_taint(args: &[OsString]) -> bool {
    let name = args.first().and_then(|program| Path::new(program).file_name());
    name == Some(OsStr::new(ISTIO_CNI_TAINT))
}

/// What is said then.
pub(super) fn no_taint() -> Failure {
    let hint = "istiod's own controller removes the taint when the node agent is ready (PILOT_ENABLE_NODE_UNTAINT_CONTROLLERS)";
    Failure::new(format!(
        "{ISTIO_CNI_TAINT} is not part of this version of gybe, and no node's taint was changed"
    ))
    .hinting(Some(hint.to_owned()))
}

/// The command line in our own form.
pub(super) fn read(args: impl IntoIterator<Item = OsString>) -> (Called, Vec<OsString>) {
    let mut args = args.into_iter();
    let program = args.next().unwrap_or_default();
    let rest: Vec<OsString> = args.collect();
    let first = rest.first().map(OsString::as_os_str);
    let name = Path::new(&program).file_name();
    // That image had a script of this name.
    if name == Some(OsStr::new(ISTIO_IPTABLES_SH)) {
        return (Called::BareFlags, as_init(program, rest));
    }
    if first.and_then(OsStr::to_str).is_some_and(InitArgs::knows) {
        let called = if is_istio_iptables(name) { Called::Gybe } else { Called::BareFlags };
        return (called, as_init(program, rest));
    }
    if is_istio_iptables(name) || is_istio_iptables(first) {
        return (Called::Gybe, as_init(program, rest));
    }
    (Called::Gybe, [program].into_iter().chain(rest).collect())
}

fn is_istio_iptables(word: Option<&OsStr>) -> bool {
    word == Some(OsStr::new(ISTIO_IPTABLES))
}

fn as_init(program: OsString, rest: Vec<OsString>) -> Vec<OsString> {
    [program, "init".into()].into_iter().chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_of_calling_it_is_known() {
        for (line, called, wanted) in [
            ("gybe", Called::Gybe, "gybe"),
            ("gybe verify -p x", Called::Gybe, "gybe verify -p x"),
            ("gybe init -p 15001", Called::Gybe, "gybe init -p 15001"),
            ("gybe --json verify", Called::Gybe, "gybe --json verify"),
            ("gybe --help", Called::Gybe, "gybe --help"),
            ("gybe -V", Called::Gybe, "gybe -V"),
            ("gybe istio-iptables -p 1", Called::Gybe, "gybe init istio-iptables -p 1"),
            ("/usr/bin/istio-iptables -p 1", Called::Gybe, "/usr/bin/istio-iptables init -p 1"),
            ("istio-iptables", Called::Gybe, "istio-iptables init"),
            ("istio-iptables --help", Called::Gybe, "istio-iptables init --help"),
            ("pilot-agent istio-iptables -n", Called::Gybe, "pilot-agent init istio-iptables -n"),
            ("gybe -p 15001 -u 1337", Called::BareFlags, "gybe init -p 15001 -u 1337"),
            ("gybe -p15001", Called::BareFlags, "gybe init -p15001"),
            ("gybe --envoy-port=1 -b *", Called::BareFlags, "gybe init --envoy-port=1 -b *"),
            ("/x/istio-iptables.sh -p 1", Called::BareFlags, "/x/istio-iptables.sh init -p 1"),
        ] {
            let (as_read, args) = read(line.split(' ').map(OsString::from));
            let args: Vec<_> = args.iter().map(|arg| arg.to_str().unwrap()).collect();
            assert_eq!((as_read, args.join(" ").as_str()), (called, wanted), "{line}");
        }
    }
}
