//! `gybe init`: what the init container `istio-init` does, in the pod it runs in.

use super::answer::{Answer, Failure};
use super::backend;
use super::called::Called;
use super::validate::validate;
use crate::pod::families::NoAddress;
use crate::pod::init_args::{InitArgs, InitArgsError, Order};
use crate::pod::own_namespace;
use crate::pod::policy_file::PolicyFile;
use crate::pod::resolv_conf;
use clap::Args;
use gybe_netfilter::policy::{Families, RedirectPolicy};
use gybe_netfilter::redirection::{self, Redirection};
use gybe_netfilter::show::show;
use gybe_plugin::families::ipv6_left_alone;
use serde_json::json;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

pub(super) const CANNOT_FOLLOW: &str = "cannot follow the arguments";

/// What a command line is read against.
#[derive(Debug)]
pub(super) struct Surroundings {
    /// By which name the program was called.
    pub(super) called: Called,
    /// Its environment.
    pub(super) environment: BTreeMap<String, String>,
}

/// The command line of `istio-iptables`, which clap leaves alone.
#[derive(Debug, Args)]
pub(super) struct IstioArgs {
    /// The arguments of istio-iptables; its environment variables count too
    #[arg(value_name = "ISTIO-IPTABLES ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Redirect the pod this runs in, as its init container: istio-init's arguments, variables and order.
///
/// Unlike apply it writes into the network namespace it runs in. A node's is refused, and
/// --force-apply overrules that. Also when called as istio-iptables, by that name or that first
/// word; or with nothing but flags, which then mean what they meant to Istio 1.0: one port for both
/// directions. --dry-run prints the rules, --cleanup-only takes them away, --skip-rule-apply writes
/// none, --run-validation then does what gybe validate does (exit code 126: not redirected).
#[derive(Debug, Args)]
pub(super) struct InitCommand {
    #[command(flatten)]
    istio: IstioArgs,
}

impl IstioArgs {
    pub(super) fn read(&self, surroundings: &Surroundings) -> Result<InitArgs, Failure> {
        let args = InitArgs::read(&self.arguments, &surroundings.environment).map_err(cannot_follow)?;
        Ok(match surroundings.called {
            Called::Gybe => args,
            Called::BareFlags => args.with_one_port(),
        })
    }
}

impl InitCommand {
    pub(super) fn run(&self, surroundings: &Surroundings) -> Result<Answer, Failure> {
        let args = self.istio.read(surroundings)?;
        if let Some(path) = args.network_namespace() {
            let hint = format!("gybe apply --netns {path} writes there; gybe init writes where it runs");
            return Err(Failure::new("--network-namespace is not followed").hinting(Some(hint)));
        }
        let answer = if args.orders(Order::DryRun) {
            rehearse(&args)
        } else if args.orders(Order::CleanupOnly) {
            clean_up(&args)
        } else {
            write_and_validate(&args)
        };
        let answer = answer?;
        let notes = args.notes().into_iter().chain(answer.notes.clone()).collect();
        Ok(answer.noting(notes))
    }
}

fn write_and_validate(args: &InitArgs) -> Result<Answer, Failure> {
    let written = if args.orders(Order::SkipRuleApply) {
        // What is wrong with them should show all the same.
        args.policy(&[]).map_err(cannot_follow)?;
        Answer::yes("no rule is written: --skip-rule-apply\n", json!({ "applied": false }))
    } else {
        apply(args)?
    };
    if !args.orders(Order::RunValidation) {
        return Ok(written);
    }
    let validated = validate(args)?;
    Ok(Answer {
        text: written.text + &validated.text,
        json: json!({ "init": written.json, "validation": validated.json }),
        exit: validated.exit,
        // Written rules have the same notes already.
        notes: if written.notes.is_empty() { validated.notes } else { written.notes },
    })
}

fn apply(args: &InitArgs) -> Result<Answer, Failure> {
    refuse_a_nodes_own(args)?;
    let file = wish(args)?;
    let backend = backend::of(args.tool())?;
    let addresses = addresses()?;
    let policy = file.policy(&addresses).map_err(|why| {
        let hint = "the pod's network must be there before its init containers run".to_owned();
        Failure::because("cannot redirect this pod", why).hinting(Some(hint))
    })?;
    let redirection = Redirection::of(&policy);
    redirection
        .apply(&*backend)
        .map_err(|why| Failure::hinted("cannot redirect the network namespace this runs in", why))?;
    let (rules, name) = (redirection.rules.rules().count(), backend.name());
    let outcome = if policy.captures_nothing() { "nothing is captured" } else { "this pod is redirected" };
    let text = format!("{outcome}: {rules} rules, by {name}\n");
    let json = json!({
        "applied": true, "backend": name, "rules": rules, "captures_nothing": policy.captures_nothing(),
    });
    Ok(Answer::yes(text, json).noting(notes(&policy, &addresses)))
}

/// The rules that would be written, whatever would write them.
fn rehearse(args: &InitArgs) -> Result<Answer, Failure> {
    if args.orders(Order::CleanupOnly) {
        let script = "table inet gybe\ndelete table inet gybe\n";
        return Ok(Answer::yes(script, json!({ "applied": false, "script": script })));
    }
    let file = wish(args)?;
    let addresses = addresses()?;
    let (policy, mut notes) = match file.policy(&addresses) {
        Ok(policy) => (policy, Vec::new()),
        Err(NoAddress) => {
            let note =
                "note: there is no address here, so that IPv4 alone is shown; without --dry-run this fails";
            (file.with_families(Families::V4Only), vec![note.to_owned()])
        }
    };
    notes.extend(self::notes(&policy, &addresses));
    let script = show(&Redirection::of(&policy).rules);
    let json = json!({ "applied": false, "script": script });
    Ok(Answer::yes(script, json).noting(notes))
}

/// Takes away what any backend may have left. What cannot be taken away does not fail the pod.
fn clean_up(args: &InitArgs) -> Result<Answer, Failure> {
    refuse_a_nodes_own(args)?;
    let mut notes = Vec::new();
    let mut used = Vec::new();
    for backend in backend::all_here() {
        match redirection::remove(&*backend) {
            Ok(()) => used.push(backend.name()),
            Err(why) => {
                let failure = Failure::because(format!("cannot clean up by {}", backend.name()), why);
                notes.push(format!("note: {failure}"));
            }
        }
    }
    let text = if notes.is_empty() {
        "nothing of ours is left in this pod\n"
    } else {
        "something of ours may be left in this pod\n"
    };
    Ok(Answer::yes(text, json!({ "removed": notes.is_empty(), "backends": used })).noting(notes))
}

/// On a node the rules would cut off the node.
fn refuse_a_nodes_own(args: &InitArgs) -> Result<(), Failure> {
    let evidence = own_namespace::nodes_own(Path::new("/proc"), Path::new("/etc/hosts"));
    match evidence {
        Some(evidence) if !args.orders(Order::ForceApply) => {
            let what = format!("this network namespace seems to be a node's and not a pod's: {evidence}");
            let hint = "run it as an init container of the pod; for a pod's namespace seen from the node there is \
                        gybe apply --netns PATH. A pod that is a virtual machine may need --force-apply";
            Err(Failure::new(what).hinting(Some(hint.to_owned())))
        }
        _ => Ok(()),
    }
}

fn wish(args: &InitArgs) -> Result<PolicyFile, Failure> {
    let servers = if args.wants_dns_servers() {
        let servers = resolv_conf::servers_of(Path::new(resolv_conf::PATH));
        servers.map_err(|why| Failure::because("cannot learn the pod's DNS servers", why))?
    } else {
        Vec::new()
    };
    args.policy(&servers).map_err(cannot_follow)
}

fn addresses() -> Result<Vec<IpAddr>, Failure> {
    own_namespace::addresses().map_err(|why| Failure::hinted("cannot learn the pod's addresses", why))
}

/// What somebody should know who did not ask for it.
fn notes(policy: &RedirectPolicy, addresses: &[IpAddr]) -> Vec<String> {
    let left_alone = ipv6_left_alone(policy.families, addresses);
    let note = "note: the pod has an IPv6 address, and its IPv6 is left alone (ISTIO_DUAL_STACK is not true)";
    let left_alone = left_alone.then(|| note.to_owned());
    left_alone.into_iter().chain(captures_nothing(policy)).collect()
}

/// The note for a policy that captures nothing, as istio-iptables' own defaults do.
pub(super) fn captures_nothing(policy: &RedirectPolicy) -> Option<String> {
    let note = "note: these arguments capture nothing: -i (outbound addresses) and -b (inbound ports) are empty; \
                Istio's injector gives -i '*' -b '*'";
    policy.captures_nothing().then(|| note.to_owned())
}

fn cannot_follow(why: InitArgsError) -> Failure {
    Failure::because(CANNOT_FOLLOW, why)
}
