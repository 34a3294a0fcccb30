//! The name and the first argument with which the program was called. Every form in which a pod's init container calls
//! Istio's image becomes `gybe init`, and the program name `istio-cni-taint` becomes the command of that name.

use crate::host::image::{ISTIO_CNI_TAINT, ISTIO_IPTABLES, ISTIO_IPTABLES_SH};
use crate::pod::init_args::InitArgs;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// How the program was called.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) called_as: CalledAs,
    pub(super) environment: BTreeMap<String, String>,
}

/// The program whose arguments the command line has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CalledAs {
    /// `gybe`, or a current `istio-iptables`.
    Gybe,
    /// The image of Istio before 1.3, which took flags without a command.
    BareFlags,
}

/// Returns the command line in gybe's own form.
pub(super) fn read(args: impl IntoIterator<Item = OsString>) -> (CalledAs, Vec<OsString>) {
    let mut args = args.into_iter();
    let program = args.next().unwrap_or_default();
    let rest: Vec<OsString> = args.collect();
    let first = rest.first().map(OsString::as_os_str);
    let name = Path::new(&program).file_name();
    if name == Some(OsStr::new(ISTIO_CNI_TAINT)) {
        return (CalledAs::Gybe, [program, ISTIO_CNI_TAINT.into()].into_iter().chain(rest).collect());
    }
    // The entry point of Istio's image before 1.3 was a script of this name.
    if name == Some(OsStr::new(ISTIO_IPTABLES_SH)) {
        return (CalledAs::BareFlags, as_init(program, rest));
    }
    if first.and_then(OsStr::to_str).is_some_and(InitArgs::is_flag) {
        let called_as = if is_istio_iptables(name) { CalledAs::Gybe } else { CalledAs::BareFlags };
        return (called_as, as_init(program, rest));
    }
    if is_istio_iptables(name) || is_istio_iptables(first) {
        return (CalledAs::Gybe, as_init(program, rest));
    }
    let rest = match first.and_then(OsStr::to_str) {
        Some(command @ ("init" | "validate")) if requests_help(&rest) => {
            vec![command.into(), "--help".into()]
        }
        _ => rest,
    };
    (CalledAs::Gybe, [program].into_iter().chain(rest).collect())
}

fn is_istio_iptables(word: Option<&OsStr>) -> bool {
    word == Some(OsStr::new(ISTIO_IPTABLES))
}

/// Reports whether the arguments request help. clap leaves everything after `init` and `validate` to the parser of
/// `istio-iptables`' flags, which has no help, so a request for help replaces the other arguments.
fn requests_help(args: &[OsString]) -> bool {
    args.iter().any(|arg| arg == "--help" || arg == "-h")
}

fn as_init(program: OsString, rest: Vec<OsString>) -> Vec<OsString> {
    if requests_help(&rest) {
        return vec![program, "init".into(), "--help".into()];
    }
    [program, "init".into()].into_iter().chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_the_command_line_is_read() {
        for (line, called_as, expected) in [
            ("gybe", CalledAs::Gybe, "gybe"),
            ("gybe verify -p x", CalledAs::Gybe, "gybe verify -p x"),
            ("gybe init -p 15001", CalledAs::Gybe, "gybe init -p 15001"),
            ("gybe init -p 15001 --help", CalledAs::Gybe, "gybe init --help"),
            ("gybe validate -h", CalledAs::Gybe, "gybe validate --help"),
            ("gybe verify -h", CalledAs::Gybe, "gybe verify -h"),
            ("gybe --json verify", CalledAs::Gybe, "gybe --json verify"),
            ("gybe --help", CalledAs::Gybe, "gybe --help"),
            ("gybe -V", CalledAs::Gybe, "gybe -V"),
            ("gybe istio-iptables -p 1", CalledAs::Gybe, "gybe init istio-iptables -p 1"),
            ("gybe istio-iptables --help", CalledAs::Gybe, "gybe init --help"),
            ("gybe istio-iptables -p 1 -h", CalledAs::Gybe, "gybe init --help"),
            ("/usr/bin/istio-iptables -p 1", CalledAs::Gybe, "/usr/bin/istio-iptables init -p 1"),
            ("istio-iptables", CalledAs::Gybe, "istio-iptables init"),
            ("istio-iptables --help", CalledAs::Gybe, "istio-iptables init --help"),
            ("pilot-agent istio-iptables -n", CalledAs::Gybe, "pilot-agent init istio-iptables -n"),
            ("istio-cni-taint", CalledAs::Gybe, "istio-cni-taint istio-cni-taint"),
            ("/opt/istio-cni-taint --help", CalledAs::Gybe, "/opt/istio-cni-taint istio-cni-taint --help"),
            ("istio-cni-taint doctor", CalledAs::Gybe, "istio-cni-taint istio-cni-taint doctor"),
            ("gybe -p 15001 -u 1337", CalledAs::BareFlags, "gybe init -p 15001 -u 1337"),
            ("gybe -p15001", CalledAs::BareFlags, "gybe init -p15001"),
            ("gybe --envoy-port=1 -b *", CalledAs::BareFlags, "gybe init --envoy-port=1 -b *"),
            ("/x/istio-iptables.sh -p 1", CalledAs::BareFlags, "/x/istio-iptables.sh init -p 1"),
        ] {
            let (read_as, args) = read(line.split(' ').map(OsString::from));
            let args: Vec<_> = args.iter().map(|arg| arg.to_str().unwrap()).collect();
            assert_eq!((read_as, args.join(" ").as_str()), (called_as, expected), "{line}");
        }
    }
}
