//! The command line of `istio-iptables`, which `gybe init` and `gybe validate` take.

use super::invocation::{CalledAs, Context};
use super::output::CommandError;
use crate::pod::init_args::{InitArgs, InitArgsError};
use clap::Args;
use gybe_netfilter::model::policy::RedirectPolicy;

/// The arguments of `istio-iptables`, which clap does not parse.
#[derive(Debug, Args)]
pub(super) struct IstioArgs {
    /// The arguments of istio-iptables; its environment variables are read too
    #[arg(value_name = "ISTIO-IPTABLES ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl IstioArgs {
    pub(super) fn read(&self, context: &Context) -> Result<InitArgs, CommandError> {
        let args = InitArgs::read(&self.arguments, &context.environment).map_err(cannot_use)?;
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
