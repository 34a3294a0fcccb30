//! Random arguments for `istio-iptables` and `gybe init`.

use crate::argument_set::{ArgumentSet, Writer};
use crate::comparison::{Compared, case, compare_all, drawn, network, number, wrong_connections};
use crate::random_arguments::argument_sets;
use gybe_integration::failure::Failure;
use gybe_integration::flow_check::Rules;
use gybe_netfilter::policy::Families;

/// Returns what differs from the connections that Gybe predicts for these arguments, for each program that writes them.
pub(crate) fn compare(set: &ArgumentSet, number: u64, writers: &[Writer]) -> Result<Vec<String>, Failure> {
    let case = case(set.policy()?, number)?;
    let mut found = Vec::new();
    for writer in writers {
        let context = |text: &str| format!("set {number}, {writer:?}: {text}\n  {set}\n  {:?}", case.policy);
        let topology = network(&case.policy)?;
        let run = set.spelled_for(*writer).run(*writer, &topology)?;
        if run.code != Some(0) {
            let last: Vec<&str> = run.err.lines().filter(|line| line.contains("rror")).collect();
            found.push(context(&format!("exit code {:?}: {}", run.code, last.join("; "))));
            continue;
        }
        let v4_only = *writer == Writer::IstioNft && case.policy.families == Families::V4Only;
        let compared = if v4_only { Compared::V4 } else { Compared::BothFamilies };
        let wrong = wrong_connections(&case, &topology, Rules::Present, compared)?;
        found.extend(wrong.iter().map(|wrong| context(wrong)));
    }
    Ok(found)
}

#[test]
fn random_arguments_capture_the_same_connections() -> Result<(), Failure> {
    let (first, sets) = (number("GYBE_SEED", 1), number("GYBE_SETS", 40));
    println!("argument sets from GYBE_SEED={first}, GYBE_SETS={sets}");
    compare_all("argument sets, each with 5 programs", first..first + sets, |number| {
        compare(&drawn(number, &argument_sets()), number, &Writer::ALL)
    })
}
