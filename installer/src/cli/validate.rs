//! `gybe validate`: reports whether the pod it runs in is redirected.

use super::init::{IstioArgs, cannot_use, captures_nothing_note};
use super::invocation::Context;
use super::output::{CommandError, CommandOutput, Exit};
use super::style::examples;
use crate::pod::init_args::InitArgs;
use crate::pod::own_namespace;
use crate::pod::policy_file::{Families, FamilyChoice, Stack};
use crate::pod::validation::{Validation, ValidationResult};
use clap::Args;
use gybe_netfilter::model::ruleset::Family;

/// Report whether the pod it runs in is redirected, by a test connection
///
/// Connects to 127.0.0.6:15002 (::6 in a pod whose first address is IPv6) as the proxy's user and listens on
/// the proxy's ports, so it must run before the proxy. Only redirect rules can bring this connection to these
/// ports. Exit code 0: the connection arrived. 126: it did not arrive within 5 s, and what happened instead is
/// printed.
///
/// Takes the arguments of istio-iptables and uses -p, -z, -u, --iptables-probe-port and --probe-timeout. A note
/// names arguments that capture nothing (-i and -b empty): the test connection arrives even then.
#[derive(Debug, Args)]
#[command(after_help = examples(&[
    "gybe validate",
    "gybe validate -p 15001 -z 15006 -u 1337 --probe-timeout 10s",
]))]
pub(super) struct ValidateArgs {
    #[command(flatten)]
    istio: IstioArgs,
}

impl ValidateArgs {
    pub(super) fn run(&self, context: &Context) -> Result<CommandOutput, CommandError> {
        let args = self.istio.read(context)?;
        let output = validate(&args)?;
        let notes = args.notes().into_iter().chain(output.notes.clone()).collect();
        Ok(output.with_notes(notes))
    }
}

/// Runs the validation. It writes no rule, so the DNS servers do not matter.
pub(super) fn validate(args: &InitArgs) -> Result<CommandOutput, CommandError> {
    let policy = args.policy(&[]).map_err(cannot_use)?.with_families(Families::V4Only);
    let validation = Validation::of(&policy, args.validation(), family()?);
    let result = validation.run().map_err(|why| CommandError::because("cannot validate", why))?;
    let exit = match result {
        ValidationResult::Redirected(_) => Exit::Yes,
        ValidationResult::NotRedirected(_) => Exit::NotRedirected,
    };
    // Without arguments it is unknown what the rules should capture.
    let notes = args.has_policy_arguments().then(|| captures_nothing_note(&policy)).flatten();
    let output =
        CommandOutput { exit, ..CommandOutput::done(result.text(&validation), result.json(&validation)) };
    Ok(output.with_notes(notes.into_iter().collect()))
}

/// Returns the family of the first usable address (docs/ISTIO.md, section 2.5). A pod without one is
/// tested on IPv4.
fn family() -> Result<Family, CommandError> {
    let cannot = |why| CommandError::hinted("cannot read the pod's addresses", why);
    let addresses = own_namespace::addresses().map_err(cannot)?;
    Ok(match FamilyChoice::ByAddresses(Stack::Single).decide(&addresses) {
        Ok(Families::V4AndV6) => Family::V6,
        Ok(Families::V4Only) | Err(_) => Family::V4,
    })
}
