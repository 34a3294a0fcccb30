//! Random arguments for `istio-iptables` and `gybe init`.

use crate::argument_set::{ArgumentSet, Writer};
use crate::comparison::{Compared, case, compare_all, drawn, network, number, wrong_connections};
use crate::random_arguments::argument_sets;
use gybe_integration::failure::Failure;
use gybe_integration::flow_check::Rules;
use gybe_netfilter::policy::{Dns, Families, Mode, Port, RedirectPolicy};

/// No process listens on it.
const UNUSED_PORT: Port = Port::new(5999).unwrap();

/// Returns what differs from the connections that Gybe predicts for these arguments, for each program that writes them.
pub(crate) fn compare(set: &ArgumentSet, number: u64, writers: &[Writer]) -> Result<Vec<String>, Failure> {
    let case = case(set.policy()?, number)?;
    let mut found = Vec::new();
    for writer in writers.iter().filter(|writer| is_comparable(**writer, &case.policy)) {
        let report = |wrong: &[String]| {
            let wrong = wrong.join("\n  ");
            format!("set {number}, {writer:?}: {set}\n  {:?}\n  {wrong}", case.policy)
        };
        let topology = network(&case.policy)?;
        let run = set.spelled_for(*writer).run(*writer, &topology)?;
        if run.code != Some(0) {
            let text = run.out + &run.err;
            let errors: Vec<&str> = text.lines().filter(|line| line.contains("rror")).collect();
            found.push(report(&[format!("exit code {:?}: {}", run.code, errors.join("; "))]));
            continue;
        }
        let v4_only = *writer == Writer::IstioNft && case.policy.families == Families::V4Only;
        let compared = if v4_only { Compared::V4 } else { Compared::BothFamilies };
        let wrong = wrong_connections(&case, &topology, Rules::Present, compared)?;
        found.extend((!wrong.is_empty()).then(|| report(&wrong)));
    }
    Ok(found)
}

/// Reports whether the program can be compared. Istio's nft engine fails when the DNS servers are of IPv6 only and IPv6
/// is off, and its TPROXY rules let connections pass when no process listens on the inbound port (docs/DIFFERENCES.md).
fn is_comparable(writer: Writer, policy: &RedirectPolicy) -> bool {
    let v6_servers = matches!(&policy.dns, Dns::Servers(servers) if servers.v4().is_empty());
    let fails = v6_servers && policy.families == Families::V4Only;
    let passes = policy.mode != Mode::Redirect && policy.inbound_port == UNUSED_PORT;
    writer != Writer::IstioNft || !(fails || passes)
}

#[test]
fn random_arguments_capture_the_same_connections() -> Result<(), Failure> {
    let (first, sets) = (number("GYBE_SEED", 1), number("GYBE_SETS", 40));
    println!("argument sets from GYBE_SEED={first}, GYBE_SETS={sets}");
    compare_all("argument sets, each with 5 programs", first..first + sets, |number| {
        compare(&drawn(number, &argument_sets()), number, &Writer::ALL)
    })
}
