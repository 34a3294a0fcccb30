//! The rules of the reference encoders meet packets: connections under the policies of the flow vectors, the probe's
//! profiles and random policies.

use gybe_integration::failure::Failure;
use gybe_integration::flow_check::check_vectors;
use gybe_integration::random_policy::{cases, compare};
use gybe_integration::vectors;
use gybe_netfilter::nft::Nft;
use gybe_netfilter::probe::{Finding, Profile, try_out};
use gybe_referees::backend::Libnftnl;
use std::sync::{Mutex, PoisonError};

/// The random policies of `make -C integration differential` without arguments.
const RANDOM: std::ops::Range<u64> = 1..201;

/// Each test has many networks, and measures whether a connection is answered in time.
static ONE_TEST_AT_A_TIME: Mutex<()> = Mutex::new(());

#[test]
fn under_every_policy_written_by_nftnl_every_flow_ends_where_it_was_recorded_to_end() -> Result<(), Failure> {
    let _others_wait = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    check_vectors(vectors::all()?, &Libnftnl)
}

#[test]
fn every_profile_of_the_probe_works_with_nftnl() -> Result<(), Failure> {
    let _others_wait = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for profile in Profile::EVERY {
        assert_eq!(try_out(&Libnftnl, profile)?, Finding::Works, "{profile}");
    }
    Ok(())
}

#[test]
fn nftnl_gybe_and_trace_agree_about_random_policies() -> Result<(), Failure> {
    let _others_wait = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let comparison = compare(cases(RANDOM)?, &[&Libnftnl, &Nft])?;
    println!("nftnl, Gybe's encoder and trace: {comparison}");
    let repeated = &comparison.repeated;
    assert!(repeated.len() * 50 <= comparison.policies, "compared again: {repeated:?}");
    Ok(())
}

#[cfg(feature = "rustables")]
mod rustables {
    use super::*;
    use gybe_netfilter::compile::compile;
    use gybe_netfilter::model::policy::RedirectPolicy;
    use gybe_netfilter::nft::Start;
    use gybe_referees::backend::Rustables;
    use gybe_referees::with_rustables::complete;

    fn is_expressible(policy: &RedirectPolicy) -> bool {
        complete(&compile(policy), Start::Fresh).is_ok()
    }

    #[test]
    fn under_the_policies_that_rustables_can_write_every_flow_ends_where_it_was_recorded_to_end()
    -> Result<(), Failure> {
        let _others_wait = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let all = vectors::all()?;
        let (can, cannot): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|vector| is_expressible(&vector.policy));
        println!("flow vectors: rustables wrote {}, and cannot express {}", can.len(), cannot.len());
        assert!(can.len() >= 5, "{} policies", can.len());
        check_vectors(can, &Rustables)
    }

    #[test]
    fn each_profile_of_the_probe_works_with_rustables_or_names_what_rustables_lacks() -> Result<(), Failure> {
        let _others_wait = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        for profile in Profile::EVERY {
            let finding = try_out(&Rustables, profile)?;
            println!("profile {profile}: {finding}");
            match is_expressible(&profile.policy()) {
                true => assert_eq!(finding, Finding::Works, "{profile}"),
                false => assert!(
                    matches!(&finding, Finding::Refused(refusal)
                        if refusal.why.starts_with("rustables cannot express")),
                    "{profile}: {finding}"
                ),
            }
        }
        Ok(())
    }

    #[test]
    fn rustables_and_trace_agree_about_the_random_policies_that_rustables_can_write() -> Result<(), Failure> {
        let _others_wait = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let (can, cannot): (Vec<_>, Vec<_>) =
            cases(RANDOM)?.into_iter().partition(|(_, case)| is_expressible(&case.policy));
        println!("random policies: rustables wrote {}, and cannot express {}", can.len(), cannot.len());
        assert!(can.len() >= 5, "{} policies", can.len());
        println!("rustables and trace: {}", compare(can, &[&Rustables])?);
        Ok(())
    }
}
