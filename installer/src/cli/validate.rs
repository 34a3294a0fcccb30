//! `gybe validate`: does the pod this runs in redirect?

use super::answer::{Answer, Exit, Failure};
use super::init::{self, IstioArgs};
use crate::pod::families::{Families, FamilyWish, Stack};
use crate::pod::init_args::InitArgs;
use crate::pod::own_namespace;
use crate::pod::validation::{Check, Verdict};
use clap::Args;
use gybe_netfilter::ruleset::Family;

/// Say whether the network namespace this runs in redirects, by a connection that only rules can
/// bring to the proxy's ports.
///
/// It calls 127.0.0.6:15002 (::6 in a pod whose first address is IPv6) as the proxy's user and
/// listens on the proxy's ports, so it must run before the proxy does. Exit code 0: the call
/// arrived. 126: not within 5 s, and what happened instead is printed. Takes the arguments of
/// istio-iptables; those that count are -p, -z, -u, --iptables-probe-port and --probe-timeout. Arguments
/// that capture nothing (-i and -b empty) are named: the proxy's own call arrives all the same.
#[derive(Debug, Args)]
pub(super) struct ValidateArgs {
    #[command(flatten)]
    istio: IstioArgs,
}

impl ValidateArgs {
    pub(super) fn run(&self, surroundings: &init::Surroundings) -> Result<Answer, Failure> {
        let args = self.istio.read(surroundings)?;
        let answer = validate(&args)?;
        let notes = args.notes().into_iter().chain(answer.notes.clone()).collect();
        Ok(answer.noting(notes))
    }
}

/// The validation these arguments ask for. Neither writes a rule nor needs to know of DNS servers.
pub(super) fn validate(args: &InitArgs) -> Result<Answer, Failure> {
    let cannot = |why| Failure::because(init::CANNOT_FOLLOW, why);
    let policy = args.policy(&[]).map_err(cannot)?.with_families(Families::V4Only);
    let check = Check::of(&policy, args.probe(), family()?);
    let verdict = check.make().map_err(|why| Failure::because("cannot validate", why))?;
    let exit = match verdict {
        Verdict::Redirected(_) => Exit::Yes,
        Verdict::NotRedirected(_) => Exit::NotRedirected,
    };
    // Called without arguments it is not told what the rules should capture.
    let notes = args.has_policy_arguments().then(|| init::captures_nothing(&policy)).flatten();
    let answer = Answer { exit, ..Answer::yes(verdict.text(&check), verdict.json(&check)) };
    Ok(answer.noting(notes.into_iter().collect()))
}

/// The family of the first address that counts (docs/ISTIO.md, section 2.5). A pod that has
/// none can still be asked on IPv4.
fn family() -> Result<Family, Failure> {
    let cannot = |why| Failure::hinted("cannot learn the pod's addresses", why);
    let addresses = own_namespace::addresses().map_err(cannot)?;
    Ok(match FamilyWish::ByAddresses(Stack::Single).decide(&addresses) {
        Ok(Families::V4AndV6) => Family::V6,
        Ok(Families::V4Only) | Err(_) => Family::V4,
    })
}
