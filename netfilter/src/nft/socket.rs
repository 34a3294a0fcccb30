//! The netfilter socket: sends a batch in one datagram and evaluates the kernel's replies.

use super::batch::{Batch, BatchObject};
use super::error::{KernelPart, NftError};
use crate::kernel::netlink::reply::{MessageRefusal, RequestOutcome};
use crate::kernel::netlink::socket::Socket;
use nix::errno::Errno;
use nix::sys::socket::SockProtocol;

/// A connection to nftables in the network namespace that the opening thread was in.
#[derive(Debug)]
pub(crate) struct NftSocket(pub(crate) Socket);

impl NftSocket {
    pub(crate) fn open() -> Result<Self, NftError> {
        Ok(Self(Socket::open(SockProtocol::NetlinkNetFilter)?))
    }

    /// Sends the batch. Returns `Ok` only if the kernel acknowledged it and refused no message.
    pub(super) fn transact(&mut self, batch: &Batch) -> Result<(), NftError> {
        self.0.make_room(batch.bytes().len());
        to_result(batch, self.0.transact(batch.bytes(), batch.last())?)
    }
}

/// Converts the outcome of a batch to a result.
pub(crate) fn to_result(batch: &Batch, outcome: RequestOutcome) -> Result<(), NftError> {
    match outcome {
        RequestOutcome::Done => Ok(()),
        RequestOutcome::Unknown(source) => Err(NftError::OutcomeUnknown(source)),
        RequestOutcome::Refused(refusals) => Err(refused(batch, refusals)),
    }
}

/// Reports the refusal with the lowest sequence number: later refusals can be consequences of it, such as those after
/// a refusal of the table.
fn refused(batch: &Batch, refusals: Vec<MessageRefusal>) -> NftError {
    let others = refusals.len().saturating_sub(1);
    let first = refusals.into_iter().min_by_key(|refusal| refusal.sequence);
    let Some(MessageRefusal { sequence, errno: source, kernel_message, offset }) = first else {
        return NftError::Refused {
            object: BatchObject::Transaction,
            kernel_message: None,
            lacking: None,
            others,
            source: Errno::UnknownErrno,
        };
    };
    let object = batch.object(sequence).clone();
    let lacking = KernelPart::lacking(&object, source, &batch.expression_names(sequence, offset));
    NftError::Refused { object, kernel_message, lacking, others, source }
}

#[cfg(test)]
mod tests {
    use super::super::batch::Start;
    use super::*;
    use crate::kernel::netlink::reply::Unknown;
    use crate::model::Hint;
    use crate::model::policy::Families;
    use crate::model::ruleset::{Chain, ChainName, Rule, RuleId, Ruleset, Verdict};

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

    fn refusal(sequence: u32, errno: Errno) -> MessageRefusal {
        MessageRefusal { sequence, errno, kernel_message: None, offset: None }
    }

    #[test]
    fn f25_a_refusal_of_any_message_for_any_reason_is_an_error() {
        let batch = batch();
        // One beyond the last sequence number: a refusal of an unknown message is an error too.
        for sequence in 0..=batch.last() + 1 {
            for errno in REASONS {
                let error =
                    to_result(&batch, RequestOutcome::Refused(vec![refusal(sequence, errno)])).unwrap_err();
                let named = matches!(&error, NftError::Refused { object, source, .. }
                    if object == batch.object(sequence) && *source == errno);
                assert!(named, "{error:?}");
                // Only these two report whether the table exists; callers handle them.
                let table = *batch.object(sequence) == BatchObject::Table;
                assert_eq!(error.is_table_there(), table && errno == Errno::EEXIST);
                assert_eq!(error.is_table_absent(), table && errno == Errno::ENOENT);
                assert!(!error.leaves_outcome_unknown(), "the kernel refused it: {error:?}");
            }
        }
    }

    #[test]
    fn f25_an_unknown_outcome_is_an_error_with_a_hint() {
        for unknown in [Unknown::NotAcknowledged, Unknown::RepliesDropped, Unknown::Unreadable] {
            let error = to_result(&batch(), RequestOutcome::Unknown(unknown)).unwrap_err();
            assert!(error.leaves_outcome_unknown() && error.hint().is_some(), "{error:?}");
        }
    }

    #[test]
    fn f25_the_error_reports_the_first_refusal_of_the_batch_and_the_number_of_the_others() {
        let all = vec![refusal(2, Errno::EOPNOTSUPP), refusal(0, Errno::ENOMEM), refusal(3, Errno::ENOENT)];
        let error = to_result(&batch(), RequestOutcome::Refused(all)).unwrap_err();
        let is_first = matches!(
            &error,
            NftError::Refused { object: BatchObject::Transaction, source: Errno::ENOMEM, others: 2, .. }
        );
        assert!(is_first, "{error:?}");
    }
}
