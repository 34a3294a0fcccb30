//! `gybe init` redirects the pod it runs in, as the init container `istio-init` does; `gybe validate` reports whether that
//! pod is redirected. Both take the arguments of `istio-iptables`.

use crate::cli::output::{CommandError, CommandOutput, Exit};
use crate::cli::style::{examples, heading};
use crate::cli::{CalledAs, Context, backend};
use crate::pod::init_args::{InitArgs, InitArgsError, RunOption};
use crate::pod::own_namespace;
use crate::pod::policy_file::{FamilyChoice, NoAddress, PolicyFile, Stack};
use crate::pod::validation::{Validation, ValidationResult};
use clap::Args;
use clap::builder::StyledStr;
use gybe_netfilter::apply::redirection::{self, Redirection};
use gybe_netfilter::inspect::show::show;
use gybe_netfilter::model::policy::{Families, RedirectPolicy};
use gybe_netfilter::model::ruleset::Family;
use gybe_plugin::families::ipv6_left_alone;
use nix::unistd::User;
use serde_json::json;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

/// Redirect the pod it runs in, with the arguments and variables of istio-init
///
/// Unlike apply it writes into the network namespace it runs in. A node's namespace is refused unless
/// --force-apply is given. The program does the same if its name or its first argument is istio-iptables, and if
/// it is called with flags only; these then have the meaning they had in Istio 1.0: one port for both directions.
///
/// --dry-run prints the rules, --cleanup-only removes them, --skip-rule-apply writes none, and
/// --run-validation then does what gybe validate does (exit code 126: not redirected).
#[derive(Debug, Args)]
#[command(after_help = after_help())]
pub(super) struct InitCommand {
    #[command(flatten)]
    istio: IstioArgs,
}

fn after_help() -> StyledStr {
    let examples = examples(&[
        "gybe init -p 15001 -z 15006 -u 1337 -m REDIRECT -i '*' -b '*' -d 15090,15021,15020",
        "gybe istio-iptables -i '*' -b '*' --dry-run",
    ]);
    format!(
        "{}\n{}\n{}",
        heading(
            "Arguments of istio-iptables, and the environment variables that set them (the last one counts):"
        ),
        InitArgs::help(),
        examples.ansi()
    )
    .into()
}

impl InitCommand {
    pub(super) fn run(&self, context: &Context) -> Result<CommandOutput, CommandError> {
        let args = self.istio.read(context)?;
        if let Some(path) = args.network_namespace() {
            let hint =
                format!("use gybe apply --netns {path}; gybe init writes into the namespace it runs in");
            return Err(CommandError::new("--network-namespace is not supported").with_hint(hint));
        }
        let output = if args.requests(RunOption::DryRun) {
            dry_run(&args).and_then(|output| write_to_file(&args, output))
        } else if args.requests(RunOption::CleanupOnly) {
            clean_up(&args)
        } else {
            write_and_validate(&args)
        };
        let output = output?;
        let notes = args.notes().into_iter().chain(output.notes.clone()).collect();
        Ok(output.with_notes(notes))
    }
}

fn write_and_validate(args: &InitArgs) -> Result<CommandOutput, CommandError> {
    let written = if args.requests(RunOption::SkipRuleApply) {
        // Invalid arguments are an error even if no rule is written.
        args.policy(&[]).map_err(cannot_use)?;
        CommandOutput::done("wrote no rules: --skip-rule-apply\n", json!({ "applied": false }))
    } else {
        apply(args)?
    };
    if !args.requests(RunOption::RunValidation) {
        return Ok(written);
    }
    let validated = validate(args)?;
    Ok(CommandOutput {
        text: written.text + &validated.text,
        json: json!({ "init": written.json, "validation": validated.json }),
        exit: validated.exit,
        // Both steps have the same notes.
        notes: if written.notes.is_empty() { validated.notes } else { written.notes },
    })
}

fn apply(args: &InitArgs) -> Result<CommandOutput, CommandError> {
    refuse_a_nodes_namespace(args)?;
    let file = policy_file(args)?;
    let backend = backend::named(args.backend())?;
    let addresses = addresses()?;
    let policy = file.policy(&addresses).map_err(|why| {
        let hint = "the pod's network must be set up before its init containers run".to_owned();
        CommandError::because("cannot redirect this pod", why).with_hint(hint)
    })?;
    let redirection = Redirection::of(&policy);
    redirection
        .apply(&*backend)
        .map_err(|why| CommandError::hinted("cannot redirect the network namespace this runs in", why))?;
    let (rules, name) = (redirection.rules.rules().count(), backend.name());
    let outcome = if policy.captures_nothing() { "nothing is captured" } else { "this pod is redirected" };
    let text = format!("{outcome}: wrote {rules} rules with {name}\n");
    let json = json!({
        "applied": true, "backend": name, "rules": rules, "captures_nothing": policy.captures_nothing(),
    });
    Ok(CommandOutput::done(text, json).with_notes(notes(&policy, &addresses)))
}

/// Prints the rules as an nft script, whichever backend would write them.
fn dry_run(args: &InitArgs) -> Result<CommandOutput, CommandError> {
    if args.requests(RunOption::CleanupOnly) {
        let script = "table inet gybe\ndelete table inet gybe\n";
        return Ok(CommandOutput::done(script, json!({ "applied": false, "script": script })));
    }
    let file = policy_file(args)?;
    let addresses = addresses()?;
    let (policy, mut notes) = match file.policy(&addresses) {
        Ok(policy) => (policy, Vec::new()),
        Err(NoAddress) => {
            let note = "note: this namespace has no address, so only IPv4 rules are printed; without --dry-run \
                        this is an error";
            (file.with_families(Families::V4Only), vec![note.to_owned()])
        }
    };
    notes.extend(self::notes(&policy, &addresses));
    let script = show(&Redirection::of(&policy).rules);
    let json = json!({ "applied": false, "script": script });
    Ok(CommandOutput::done(script, json).with_notes(notes))
}

/// Writes the printed rules to the file that `DRY_RUN_FILE_PATH` names, too.
fn write_to_file(args: &InitArgs, output: CommandOutput) -> Result<CommandOutput, CommandError> {
    let Some(path) = args.dry_run_file() else { return Ok(output) };
    match fs::write(path, &output.text) {
        Ok(()) => Ok(output),
        Err(why) => {
            Err(CommandError::because(format!("cannot write {path}, which DRY_RUN_FILE_PATH names"), why))
        }
    }
}

/// Removes the rules of every backend. A backend's failure is a note, so that the pod still starts.
fn clean_up(args: &InitArgs) -> Result<CommandOutput, CommandError> {
    refuse_a_nodes_namespace(args)?;
    let mut notes = Vec::new();
    let mut used = Vec::new();
    for backend in backend::all_here() {
        match redirection::remove(&*backend) {
            Ok(()) => used.push(backend.name()),
            Err(why) => {
                let failure = CommandError::because(format!("cannot clean up with {}", backend.name()), why);
                notes.push(format!("note: {failure}"));
            }
        }
    }
    let text = if notes.is_empty() {
        "no rules of Gybe are left in this pod\n"
    } else {
        "rules of Gybe may be left in this pod\n"
    };
    Ok(CommandOutput::done(text, json!({ "removed": notes.is_empty(), "backends": used })).with_notes(notes))
}

/// In a node's namespace the rules would redirect the node's own traffic.
fn refuse_a_nodes_namespace(args: &InitArgs) -> Result<(), CommandError> {
    let evidence = own_namespace::node_evidence(Path::new("/proc"), Path::new("/etc/hosts"));
    match evidence {
        Some(evidence) if !args.requests(RunOption::ForceApply) => {
            let what = format!("this network namespace seems to be a node's and not a pod's: {evidence}");
            let hint = "run it as an init container of the pod, or gybe apply --netns PATH on the node. A pod that is \
                        a virtual machine may need --force-apply";
            Err(CommandError::new(what).with_hint(hint))
        }
        _ => Ok(()),
    }
}

fn policy_file(args: &InitArgs) -> Result<PolicyFile, CommandError> {
    let servers = if args.needs_dns_servers() {
        let servers = own_namespace::servers_of(Path::new(own_namespace::PATH));
        servers.map_err(|why| CommandError::because("cannot read the pod's DNS servers", why))?
    } else {
        Vec::new()
    };
    args.policy(&servers).map_err(cannot_use)
}

fn addresses() -> Result<Vec<IpAddr>, CommandError> {
    own_namespace::addresses().map_err(|why| CommandError::hinted("cannot read the pod's addresses", why))
}

/// Returns notes about consequences that the arguments do not mention.
fn notes(policy: &RedirectPolicy, addresses: &[IpAddr]) -> Vec<String> {
    let left_alone = ipv6_left_alone(policy.families, addresses);
    let note = "note: the pod has an IPv6 address, and its IPv6 is left alone (ISTIO_DUAL_STACK is not true)";
    let left_alone = left_alone.then(|| note.to_owned());
    left_alone.into_iter().chain(captures_nothing_note(policy)).collect()
}

/// The arguments of `istio-iptables`, which clap does not parse.
#[derive(Debug, Args)]
pub(super) struct IstioArgs {
    /// The arguments of istio-iptables; its environment variables are read too
    #[arg(value_name = "ISTIO-IPTABLES ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl IstioArgs {
    pub(super) fn read(&self, context: &Context) -> Result<InitArgs, CommandError> {
        let uid_of = |name: &str| Some(User::from_name(name).ok()??.uid.as_raw());
        let args = InitArgs::read(&self.arguments, &context.environment).map_err(cannot_use)?;
        let args = args.with_proxy_user(uid_of);
        Ok(match context.called_as {
            CalledAs::Gybe => args,
            CalledAs::BareFlags => args.with_one_port(),
        })
    }
}

pub(super) fn cannot_use(why: InitArgsError) -> CommandError {
    CommandError::because("cannot use the arguments", why)
}

/// Returns a note if the policy captures nothing, as with the defaults of istio-iptables.
pub(super) fn captures_nothing_note(policy: &RedirectPolicy) -> Option<String> {
    let note = "note: these arguments capture nothing: -i (outbound addresses) and -b (inbound ports) are empty; \
                Istio's injector sets -i '*' -b '*'";
    policy.captures_nothing().then(|| note.to_owned())
}

/// Report whether the pod it runs in is redirected, by a test connection
///
/// Connects to 127.0.0.6:15002 (::6 in a pod whose first address is IPv6) as the proxy's user and listens on
/// the proxy's ports, so it must run before the proxy. Only redirect rules can bring this connection to these
/// ports. Exit code 0: the connection arrived. 126: it did not arrive within 5 s, and what happened instead is
/// printed; or that is not determined, because another process listens on the proxy's ports (JSON: redirected is null).
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
        ValidationResult::NotRedirected(_) | ValidationResult::NotDetermined(_) => Exit::NotRedirected,
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
