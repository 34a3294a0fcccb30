//! `gybe-referee`: writes a policy's rules as `gybe apply` does, with another encoder.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the program's output")]

use clap::{Parser, ValueEnum};
use gybe_installer::pod::own_namespace;
use gybe_installer::pod::policy_file::PolicyFile;
use gybe_netfilter::apply::backend::Backend;
use gybe_netfilter::apply::redirection::Redirection;
use gybe_netfilter::kernel::netns::Netns;
use gybe_referees::backend::Libnftnl;
#[cfg(feature = "rustables")]
use gybe_referees::backend::Rustables;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

/// Write Gybe's rules with other nftables encoders
///
/// `gybe verify` accepts the rules and `gybe remove` removes them.
#[derive(Debug, Parser)]
#[command(name = "gybe-referee")]
enum Arguments {
    /// Write the rules of a policy into a network namespace
    Apply(Apply),
}

#[derive(Debug, clap::Args)]
struct Apply {
    /// The encoder
    #[arg(long)]
    with: Encoder,
    /// The network namespace: a file like /run/netns/NAME
    #[arg(long, value_name = "PATH")]
    netns: PathBuf,
    /// The policy file, as for `gybe apply`; - is stdin
    #[arg(long, value_name = "FILE")]
    policy: PathBuf,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Encoder {
    /// libnftnl, by the crates nftnl and mnl
    Nftnl,
    /// rustables, which cannot express every policy
    #[cfg(feature = "rustables")]
    Rustables,
}

impl Encoder {
    fn backend(self) -> &'static dyn Backend {
        match self {
            Self::Nftnl => &Libnftnl,
            #[cfg(feature = "rustables")]
            Self::Rustables => &Rustables,
        }
    }
}

fn main() -> ExitCode {
    let Arguments::Apply(apply) = Arguments::parse();
    match apply.run() {
        Ok(rules) => {
            println!("wrote {rules} rules");
            ExitCode::SUCCESS
        }
        Err(error) => {
            let causes = std::iter::successors(error.source(), |cause: &&dyn Error| (*cause).source());
            let text = causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"));
            eprintln!("gybe-referee: {text}");
            ExitCode::from(2)
        }
    }
}

impl Apply {
    /// Returns the number of rules.
    fn run(&self) -> Result<usize, Box<dyn Error>> {
        let file = PolicyFile::parse(&self.policy_text()?)?;
        let netns = Netns::open(&self.netns)?;
        let is_the_node_s = netns.run(|| own_namespace::is_the_first(Path::new("/proc")))?;
        if is_the_node_s || netns.is_same_as(&Netns::of_this_thread()?) {
            let path = self.netns.display();
            return Err(format!("{path} is the node's namespace, or that of gybe-referee itself").into());
        }
        let policy = file.policy(&netns.run(own_namespace::addresses)??)?;
        let redirection = Redirection::of(&policy);
        netns.run(|| redirection.apply(self.with.backend()))??;
        Ok(redirection.rules.rules().count())
    }

    fn policy_text(&self) -> io::Result<String> {
        if self.policy.as_os_str() == "-" {
            io::read_to_string(io::stdin())
        } else {
            fs::read_to_string(&self.policy)
        }
    }
}
