//! Times the encoders: from the rule set to the kernel's acknowledgement, each time in a new namespace, in turn in one
//! process. Prints a line for each measurement: policy, encoder, and microseconds or what the encoder lacks.
#![expect(clippy::print_stdout, reason = "the measurements are the program's output")]

use gybe_netfilter::apply::backend::{Backend, BackendError};
use gybe_netfilter::compile::compile;
use gybe_netfilter::kernel::netns::Netns;
use gybe_netfilter::model::policy::{Families, Inbound, RedirectPolicy};
use gybe_netfilter::model::ruleset::Ruleset;
use gybe_netfilter::nft::Nft;
use gybe_referees::backend::Libnftnl;
#[cfg(feature = "rustables")]
use gybe_referees::backend::Rustables;
use std::error::Error;
use std::time::{Duration, Instant};

/// Rounds without an argument. The namespaces stay open, because the kernel's removal of one would be in a later
/// measurement: rounds are limited by the number of open files.
const ROUNDS: usize = 101;

fn main() -> Result<(), Box<dyn Error>> {
    let rounds = std::env::args().nth(1).map_or(Ok(ROUNDS), |rounds| rounds.parse())?;
    let encoders: Vec<(&str, &dyn Backend)> = vec![
        ("Gybe", &Nft),
        ("nftnl + mnl", &Libnftnl),
        #[cfg(feature = "rustables")]
        ("rustables + mnl", &Rustables),
    ];
    let mut namespaces = Vec::new();
    for (policy, rules) in policies() {
        // The first round of a policy loads code, and the kernel's modules.
        for round in 0..=rounds {
            for (name, encoder) in &encoders {
                let namespace = Netns::create()?;
                match namespace.run(|| time(*encoder, &rules))? {
                    Ok(_) if round == 0 => {}
                    Ok(time) => println!("{policy}\t{name}\t{:.1}", time.as_secs_f64() * 1e6),
                    Err(BackendError::Other(lacking)) if round == 1 => {
                        println!("{policy}\t{name}\t{lacking}");
                    }
                    Err(BackendError::Other(_)) => {}
                    Err(error) => return Err(error.into()),
                }
                namespaces.push(namespace);
            }
        }
    }
    Ok(())
}

fn time(encoder: &dyn Backend, rules: &Ruleset) -> Result<Duration, BackendError> {
    let started = Instant::now();
    let mut access = encoder.open()?;
    encoder.write(&mut access, rules)?;
    drop(access);
    Ok(started.elapsed())
}

/// The policy of a pod without annotations, and one without lists of ports, which rustables can express.
fn policies() -> [(&'static str, Ruleset); 2] {
    let default = RedirectPolicy::injected(Families::V4AndV6);
    let mut without_lists = default.clone();
    without_lists.inbound = Inbound::AllBut([15090].into_iter().collect());
    [("default", compile(&default)), ("without lists of ports", compile(&without_lists))]
}
