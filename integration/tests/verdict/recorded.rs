//! The recorded connections, walked through the rules that each backend really wrote.

use gybe_demo::predicted::{Control, SideEffect, follows};
use gybe_integration::failure::Failure;
use gybe_integration::parallel::in_parallel;
use gybe_integration::predict::in_the_pod;
use gybe_integration::topology::Topology;
use gybe_integration::vectors::{self, Location, Vector};
use gybe_netfilter::apply::backend::BackendKind;
use gybe_netfilter::apply::redirection::Redirection;
use gybe_netfilter::compile::compile;
use gybe_netfilter::inspect::live::{LiveRules, Outcome};
use gybe_netfilter::inspect::verdict::{Desired, RedirectionState, VerdictContext, judge_namespace};

/// Writes the vector's policy, reads the rules back, and walks every connection through them.
fn walked(vector: &Vector, kind: BackendKind) -> Result<Vec<String>, Failure> {
    let topology = Topology::new(vector.policy.mode, &[])?;
    let pod = topology.at(Location::Pod);
    let backend = kind.find()?;
    let redirection = Redirection::of(&vector.policy);
    pod.run(|| redirection.apply(&*backend))??;
    let live = pod.run(LiveRules::read)??.with_proxy_of(&vector.policy);
    let desired = in_the_pod(&compile(&vector.policy))?;
    let mut wrong: Vec<String> = live.not_evaluated().to_vec();
    for flow in &vector.flows {
        let packet = flow.packet()?;
        let (traced, walked) = (desired.trace(&packet), live.trace(&packet));
        // TPROXY has an effect on answers of other transparent sockets.
        let is_lost = (traced.first, walked.outcome) == (Outcome::Untouched, Outcome::RepliesLost)
            && (flow.mark.is_some() || flow.source.is_some());
        let same = traced.first == walked.outcome || is_lost;
        let decided = walked.decided_by.map(|step| step.to_string()).unwrap_or_default();
        let by = format!("{:?} desired, {:?} live by {decided}", traced.first, walked.outcome);
        if !same {
            wrong.push(format!("{kind} {} {}: {by}", vector.name, flow.id));
        }
        let recorded = Control { to: flow.to, outcome: &flow.without_rules };
        let is_plain = flow.mark.is_none() && flow.source.is_none() && !flow.is_forwarded();
        if is_plain && !follows(walked.outcome, recorded, SideEffect::None, &flow.with_rules) {
            wrong.push(format!("{kind} {} {}: recorded {}, {by}", vector.name, flow.id, flow.with_rules));
        }
    }
    let judged = pod.run(|| {
        judge_namespace(
            Desired::Policy(&vector.policy),
            VerdictContext { only: None, whole: &BackendKind::ALL, programs: None },
        )
    })??;
    if (judged.state, judged.holds()) != (RedirectionState::Redirected, true) {
        wrong.push(format!("{kind} {}: {judged:?}", vector.name));
    }
    let unknown = pod.run(|| judge_namespace(Desired::NotKnown, VerdictContext::default()))??;
    if unknown.state != RedirectionState::Redirected {
        wrong.push(format!("{kind} {} without its policy: {unknown:?}", vector.name));
    }
    Ok(wrong)
}

#[test]
fn every_backends_rules_read_back_predict_every_recorded_outcome() -> Result<(), Failure> {
    for kind in BackendKind::ALL {
        let vectors = vectors::all()?;
        let count = vectors.len();
        let wrong = in_parallel(vectors, |vector| walked(&vector, kind));
        let wrong = wrong.into_iter().collect::<Result<Vec<Vec<String>>, Failure>>()?.concat();
        assert!(wrong.is_empty(), "{kind}, {count} policies: {} differ:\n{}", wrong.len(), wrong.join("\n"));
    }
    Ok(())
}
