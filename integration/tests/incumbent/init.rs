//! Random arguments for `istio-iptables` and `gybe init`.

use crate::argument_set::{ArgumentSet, Writer};
use crate::comparison::{Compared, Written, case, compare_all, drawn, network, number};
use crate::random_arguments::argument_sets;
use gybe_integration::failure::Failure;
use gybe_integration::flow_check::Rules;
use gybe_integration::programs::Run;
use gybe_netfilter::model::policy::{Dns, Families, Mode, Port, RedirectPolicy};

/// No process listens on it.
const UNUSED_PORT: Port = Port::new(5999).unwrap();

/// Writes the rules of these arguments by each program, each in a network of its own.
pub(crate) fn write(set: &ArgumentSet, number: u64, writers: &[Writer]) -> Result<Vec<Written>, Failure> {
    let case = case(set.policy()?, number)?;
    let comparable = writers.iter().filter(|writer| is_comparable(**writer, &case.policy));
    let written = comparable.map(|writer| {
        let topology = network(&case.policy)?;
        let run = set.spelled_for(*writer).run(*writer, &topology)?;
        let v4_only = *writer == Writer::IstioNft && case.policy.families == Families::V4Only;
        Ok(Written {
            what: format!("set {number}, {writer:?}: {set}\n  {:?}", case.policy),
            case: case.clone(),
            topology,
            failure: failure(&run),
            rules: Rules::Present,
            compared: if v4_only { Compared::V4 } else { Compared::BothFamilies },
        })
    });
    written.collect()
}

/// Returns the exit code and the error messages of a program that failed.
fn failure(run: &Run) -> Option<String> {
    let lines = run.out.lines().chain(run.err.lines());
    let errors: Vec<&str> = lines.filter(|line| line.contains("rror")).collect();
    (run.code != Some(0)).then(|| format!("exit code {:?}: {}", run.code, errors.join("; ")))
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
        write(&drawn(number, &argument_sets()), number, &Writer::ALL)
    })
}
