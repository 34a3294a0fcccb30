//! The only netfilter socket: a batch goes out in one piece, and what the kernel says decides.

use super::batch::{Batch, Object};
use super::error::{KernelPart, NftError};
use crate::netlink::answer::Refusal;
use crate::netlink::reply::Outcome;
use crate::netlink::socket::Socket;
use nix::errno::Errno;
use nix::sys::socket::SockProtocol;

/// nftables of the network namespace its thread was in when it was opened.
#[derive(Debug)]
pub(crate) struct Connection(pub(crate) Socket);

impl Connection {
    pub(crate) fn open() -> Result<Self, NftError> {
        Ok(Self(Socket::open(SockProtocol::NetlinkNetFilter)?))
    }

    /// Sends the batch; `Ok` only when the kernel acknowledged it and refused nothing.
    pub(super) fn transact(&mut self, batch: &Batch) -> Result<(), NftError> {
        self.0.make_room(batch.bytes().len());
        verdict(batch, self.0.transact(batch.bytes(), batch.last())?)
    }
}

/// What the outcome means for the batch.
pub(crate) fn verdict(batch: &Batch, outcome: Outcome) -> Result<(), NftError> {
    match outcome {
        Outcome::Done => Ok(()),
        Outcome::Unknown(source) => Err(NftError::Unsettled { source }),
        Outcome::Refused(refusals) => Err(refused(batch, refusals)),
    }
}

/// The first refusal names the object; one of the table comes before those that follow from it.
fn refused(batch: &Batch, refusals: Vec<Refusal>) -> NftError {
    let others = refusals.len().saturating_sub(1);
    let first = refusals.into_iter().min_by_key(|refusal| refusal.sequence);
    let Some(Refusal { sequence, errno: source, said, offset }) = first else {
        return NftError::Refused {
            object: Object::Transaction,
            said: None,
            lacking: None,
            others,
            source: Errno::UnknownErrno,
        };
    };
    let object = batch.object(sequence).clone();
    let lacking = KernelPart::lacking(&object, source, &batch.expressions(sequence, offset));
    NftError::Refused { object, said, lacking, others, source }
}

#[cfg(test)]
mod tests {
    use super::super::batch::Start;
    use super::*;
    use crate::hint::Hint;
    use crate::netlink::reply::Unknown;
    use crate::policy::Families;
    use crate::ruleset::{Chain, ChainName, Rule, RuleId, Ruleset, Verdict};

    const REASONS: [Errno; 8] = [
        Errno::EPERM,
        Errno::EEXIST,
        Errno::ENOENT,
        Errno::EOPNOTSUPP,
        Errno::EINVAL,
        Errno::ENOMEM,
        Errno::ENOBUFS,
        Errno::EINTR,
    ];

    fn batch() -> Batch {
        let rule = Rule { id: RuleId("only"), matches: Vec::new(), verdict: Verdict::Return };
        let chains = vec![Chain { name: ChainName::NatOutput, rules: vec![rule] }];
        Batch::apply(&Ruleset { families: Families::V4AndV6, chains }, Start::Fresh).unwrap()
    }

    fn refusal(sequence: u32, errno: Errno) -> Refusal {
        Refusal { sequence, errno, said: None, offset: None }
    }

    #[test]
    fn f25_whatever_is_refused_and_why_it_is_never_done() {
        let batch = batch();
        // One beyond the last: an answer to nothing that was asked is no consent either.
        for sequence in 0..=batch.last() + 1 {
            for errno in REASONS {
                let error = verdict(&batch, Outcome::Refused(vec![refusal(sequence, errno)])).unwrap_err();
                let named = matches!(&error, NftError::Refused { object, source, .. }
                    if object == batch.object(sequence) && *source == errno);
                assert!(named, "{error:?}");
                // Only these two say what is there; only they are answered by something else.
                let table = *batch.object(sequence) == Object::Table;
                assert_eq!(error.is_table_there(), table && errno == Errno::EEXIST);
                assert_eq!(error.is_table_absent(), table && errno == Errno::ENOENT);
                assert!(!error.leaves_it_open(), "the kernel said no: {error:?}");
            }
        }
    }

    #[test]
    fn f25_an_outcome_nobody_knows_is_not_done_and_said_to_be_open() {
        for unknown in [Unknown::NotAcknowledged, Unknown::AnswersDropped, Unknown::Unreadable] {
            let error = verdict(&batch(), Outcome::Unknown(unknown)).unwrap_err();
            assert!(error.leaves_it_open() && error.hint().is_some(), "{error:?}");
        }
    }

    #[test]
    fn f25_the_refusal_that_came_first_in_the_batch_is_told_and_the_others_are_counted() {
        let all = vec![refusal(2, Errno::EOPNOTSUPP), refusal(0, Errno::ENOMEM), refusal(3, Errno::ENOENT)];
        let error = verdict(&batch(), Outcome::Refused(all)).unwrap_err();
        let told = matches!(
            &error,
            NftError::Refused { object: Object::Transaction, source: Errno::ENOMEM, others: 2, .. }
        );
        assert!(told, "{error:?}");
    }
}
