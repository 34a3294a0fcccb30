//! The exemption of the kubelet's probes as a table of its own, in the node's network namespace.
//!
//! It is compared with what the kernel lists and brought to the desired state by the smallest change: elements are added
//! and removed, so a pod that stays is never absent from its set, and only a table whose chains, rules or sets differ is
//! replaced. Either is one transaction.
//!
//! The kernel matches a socket's cgroup in output chains alone, and translates sources in postrouting chains alone
//! (`nft_socket_validate`, `nft_nat_validate`, v6.18). So the first packet's connection gets a conntrack label in
//! output, and postrouting tests the label. A packet mark would be one more bit that no other owner of the node's rules
//! may use, and rules that route by marks would see it.

use super::batch::{Batch, BatchBuilder, BatchObject, ExemptionObject as E, TooLong, comment};
use super::chain::{self, Base};
use super::error::NftError;
use super::expr::exemption as expr;
use super::key::{KeyRange, KeyType};
use super::lists::{self, ListEntry};
use super::socket::NftSocket;
use super::{dump, set};
use crate::kernel::netlink::attr::{Writer, octets};
use crate::kernel::netlink::message::{APPEND, CREATE};
use crate::kernel::uapi::*;
use crate::model::exemption::ProbeExemption;
use crate::model::inventory::{Difference, DifferenceKind, Inventory, Item, Part, PartKind};
use crate::model::ruleset::{Family, Hook};
use nix::errno::Errno;
use std::net::IpAddr;

/// The table's name, family `inet`.
pub const TABLE: &str = "gybe-probes";

const OUTPUT: &str = "output";
pub(super) const POSTROUTING: &str = "postrouting";

/// After conntrack has looked up the packet.
const LABELS: i32 = -150;
/// Ahead of other owners' rules, which may translate every packet to another network: the first translation counts.
/// They and iptables are at 100 (`NF_IP_PRI_NAT_SRC`).
const TRANSLATES: i32 = 99;

/// How often the table is read and changed when another process changes it in between.
const ATTEMPTS: usize = 3;

/// What was kept in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptExemption {
    /// Whether the kubelet's cgroup is matched. Where it is not known or the kernel cannot match it, every connection of
    /// root is exempt.
    pub matches_cgroup: bool,
    /// What was changed.
    pub change: ExemptionChange,
}

/// A change of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExemptionChange {
    /// The table was as it should be.
    None,
    /// The number of addresses that were added or removed.
    Addresses(usize),
    /// The table was missing, or its chains, rules or sets differed.
    Table,
}

impl ProbeExemption {
    /// Brings the table in the calling thread's namespace to this state. A cgroup's level counts from the root of the
    /// calling thread's cgroup namespace.
    ///
    /// # Errors
    /// When the kernel refuses it, or the namespace cannot be read.
    pub fn keep(&self) -> Result<KeptExemption, NftError> {
        let mut connection = NftSocket::open()?;
        let kept = |change| KeptExemption { matches_cgroup: self.cgroup.is_some(), change };
        match self.keep_by(&mut connection) {
            Err(why) if cannot_match(&why) => {
                let by_user = Self { cgroup: None, ..self.clone() };
                let change = by_user.keep_by(&mut connection)?;
                Ok(KeptExemption { matches_cgroup: false, change })
            }
            outcome => outcome.map(kept),
        }
    }

    fn keep_by(&self, connection: &mut NftSocket) -> Result<ExemptionChange, NftError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let found = dump::inventory_of(TABLE, connection)?;
            let (batch, change) = match changes(&self.inventory().differences(&found)) {
                Some(elements) if elements.is_empty() => return Ok(ExemptionChange::None),
                Some(elements) => (batch_of(&elements)?, ExemptionChange::Addresses(elements.len())),
                None => (self.batch()?, ExemptionChange::Table),
            };
            match connection.transact(&batch) {
                // Another process has changed the table since it was read.
                Err(NftError::Refused { source: Errno::ENOENT, .. }) if attempts < ATTEMPTS => {}
                outcome => return outcome.map(|()| change),
            }
        }
    }

    /// Returns how the table in the calling thread's namespace differs from this state.
    ///
    /// # Errors
    /// When the namespace cannot be read.
    pub fn differences(&self) -> Result<Vec<Difference>, NftError> {
        let found = dump::inventory_of(TABLE, &mut NftSocket::open()?)?;
        Ok(self.inventory().differences(&found))
    }

    /// What the kernel lists when the table is as it should be.
    fn inventory(&self) -> Inventory {
        let mut parts = Vec::new();
        for (name, base) in self.chains() {
            let rules = self.rules().into_iter().filter(|rule| rule.chain == name);
            let items = rules.map(|rule| Item {
                id: rule.id.to_owned(),
                form: rule.expressions,
                packets: Some(0),
                bytes: Some(0),
            });
            let form = chain::form(Some(&base));
            parts.push(Part { kind: PartKind::Chain, name: name.to_owned(), form, items: items.collect() });
        }
        for family in Family::ALL {
            let key = key(family);
            let items = self.pods_of(family);
            parts.push(Part {
                kind: PartKind::Set,
                name: set_name(family).to_owned(),
                form: dump::set_form(key.number(), u32::from(key.length()), 0),
                items: items.map(|pod| dump::element(Some(key), KeyRange::one(&octets(pod)))).collect(),
            });
        }
        Inventory::of(parts)
    }

    fn chains(&self) -> Vec<(&'static str, Base)> {
        let labels = (OUTPUT, Base::accepting("filter", Hook::Output, LABELS));
        let translates = (POSTROUTING, Base::accepting("nat", Hook::Postrouting, TRANSLATES));
        let labels = self.cgroup.map(|_| labels);
        labels.into_iter().chain([translates]).collect()
    }

    fn rules(&self) -> Vec<ExemptionRule> {
        let rule = |chain, id, write: &dyn Fn(&mut Writer)| {
            let mut writer = Writer::default();
            write(&mut writer);
            ExemptionRule { chain, id, expressions: writer.finish().unwrap_or_default() }
        };
        let mut rules = Vec::new();
        for family in Family::ALL {
            let (set, id) = (set_name(family), probe_id(family));
            let source: IpAddr = match family {
                Family::V4 => self.source.v4().into(),
                Family::V6 => self.source.v6().into(),
            };
            if let Some(cgroup) = self.cgroup {
                rules.push(rule(OUTPUT, label_id(family), &|w| expr::label(w, family, set, cgroup)));
                rules.push(rule(POSTROUTING, id, &|w| expr::translate_labelled(w, family, set, source)));
            } else {
                rules.push(rule(POSTROUTING, id, &|w| expr::translate_roots(w, family, set, source)));
            }
        }
        rules
    }

    fn pods_of(&self, family: Family) -> impl Iterator<Item = IpAddr> {
        self.pods.iter().copied().filter(move |pod| Family::of(*pod) == family)
    }

    /// The transaction that makes this the table, whatever is there.
    fn batch(&self) -> Result<Batch, TooLong> {
        let mut batch = BatchBuilder::with_capacity(8 * 1024);
        let name = |w: &mut Writer| w.text(NFTA_TABLE_NAME, TABLE);
        // Created first, so that the deletion cannot fail where there is no table.
        batch.add(NFT_MSG_NEWTABLE, CREATE, BatchObject::Exemption(E::Table), name);
        batch.add(NFT_MSG_DELTABLE, 0, BatchObject::Exemption(E::Table), name);
        batch.add(NFT_MSG_NEWTABLE, CREATE, BatchObject::Exemption(E::Table), name);
        for (name, base) in self.chains() {
            batch.add(NFT_MSG_NEWCHAIN, CREATE, BatchObject::Exemption(E::Chain(name)), |w| {
                w.text(NFTA_CHAIN_TABLE, TABLE);
                w.text(NFTA_CHAIN_NAME, name);
                base.write(w);
            });
        }
        for (family, id) in Family::ALL.into_iter().zip(1..) {
            batch.add(NFT_MSG_NEWSET, CREATE, BatchObject::Exemption(E::Set(set_name(family))), |w| {
                set::define(w, TABLE, set_name(family), key(family), 0, id);
            });
            add_elements(&mut batch, NFT_MSG_NEWSETELEM, family, &self.pods_of(family).collect::<Vec<_>>());
        }
        for rule in self.rules() {
            batch.add(NFT_MSG_NEWRULE, CREATE | APPEND, BatchObject::Exemption(E::Rule(rule.id)), |w| {
                w.text(NFTA_RULE_TABLE, TABLE);
                w.text(NFTA_RULE_CHAIN, rule.chain);
                w.nested(NFTA_RULE_EXPRESSIONS, |w| w.raw(&rule.expressions));
                comment(w, rule.id);
            });
        }
        batch.close(true)
    }
}

/// Reports whether the kernel cannot match this cgroup, or set a label: it has no module for it, or does not know it, or
/// the level is above 255 (`ERANGE`). After any other refusal, such as for lack of memory, the exemption is not widened.
fn cannot_match(why: &NftError) -> bool {
    matches!(
        why,
        NftError::Refused {
            object: BatchObject::Exemption(E::Rule(rule)),
            source: Errno::ENOENT | Errno::EOPNOTSUPP | Errno::EINVAL | Errno::ERANGE,
            ..
        } if Family::ALL.map(label_id).contains(rule)
    )
}

/// Reports whether the calling thread's namespace has the table.
///
/// # Errors
/// When the namespace cannot be read.
pub fn is_there() -> Result<bool, NftError> {
    let mut connection = NftSocket::open()?;
    let mut list = |request: &[u8], sequence, limit| connection.0.list(request, sequence, limit);
    lists::of_one_generation(&mut list, NFPROTO_INET, |lists| {
        let tables = lists.all(lists::TABLES, |_| ())?;
        let is_this = |table: &ListEntry| {
            let name = table.attributes().get(NFTA_TABLE_NAME);
            name.is_some_and(|name| name.text() == TABLE.as_bytes())
        };
        Ok(tables.iter().any(is_this))
    })
}

/// Deletes the table from the calling thread's namespace; succeeds when there is none.
///
/// # Errors
/// When the kernel refuses it.
pub fn remove() -> Result<(), NftError> {
    let mut batch = BatchBuilder::with_capacity(256);
    batch.add(NFT_MSG_DELTABLE, 0, BatchObject::Exemption(E::Table), |w| w.text(NFTA_TABLE_NAME, TABLE));
    match NftSocket::open()?.transact(&batch.close(true)?) {
        Err(NftError::Refused { source: Errno::ENOENT, .. }) => Ok(()),
        outcome => outcome,
    }
}

struct ExemptionRule {
    chain: &'static str,
    id: &'static str,
    expressions: Vec<u8>,
}

/// An address to add to its set, or to remove.
struct ElementChange {
    message: u16,
    pod: IpAddr,
}

/// Returns the elements to change; `None` when anything else differs.
fn changes(differences: &[Difference]) -> Option<Vec<ElementChange>> {
    let change = |difference: &Difference| {
        let message = match difference.kind {
            DifferenceKind::Missing => NFT_MSG_NEWSETELEM,
            DifferenceKind::Extra => NFT_MSG_DELSETELEM,
            DifferenceKind::Changed | DifferenceKind::Moved => return None,
        };
        let element = difference.item.as_ref().filter(|_| difference.of == PartKind::Set)?;
        // The catch-all element is no address.
        Some(ElementChange { message, pod: element.parse().ok()? })
    };
    differences.iter().map(change).collect()
}

fn batch_of(elements: &[ElementChange]) -> Result<Batch, TooLong> {
    let mut batch = BatchBuilder::with_capacity(4 * 1024);
    for message in [NFT_MSG_DELSETELEM, NFT_MSG_NEWSETELEM] {
        for family in Family::ALL {
            let changed = elements.iter().filter(|change| change.message == message).map(|change| change.pod);
            let pods: Vec<IpAddr> = changed.filter(|pod| Family::of(*pod) == family).collect();
            add_elements(&mut batch, message, family, &pods);
        }
    }
    batch.close(true)
}

fn add_elements(batch: &mut BatchBuilder, message: u16, family: Family, pods: &[IpAddr]) {
    let flags = if message == NFT_MSG_NEWSETELEM { CREATE } else { 0 };
    let (set, keys) = (set_name(family), pods.iter().map(|pod| KeyRange::one(&octets(*pod))));
    for portion in set::portions_of(TABLE, key(family), false, &keys.collect::<Vec<_>>()) {
        batch.add(message, flags, BatchObject::Exemption(E::Set(set)), |w| portion.write(w, set));
    }
}

fn key(family: Family) -> KeyType {
    match family {
        Family::V4 => KeyType::V4,
        Family::V6 => KeyType::V6,
    }
}

fn set_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "pods-v4",
        Family::V6 => "pods-v6",
    }
}

fn label_id(family: Family) -> &'static str {
    match family {
        Family::V4 => "label-probe-v4",
        Family::V6 => "label-probe-v6",
    }
}

fn probe_id(family: Family) -> &'static str {
    match family {
        Family::V4 => "probe-v4",
        Family::V6 => "probe-v6",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::exemption::KubeletCgroup;
    use crate::model::policy::ambient::ProbeAddresses;

    #[test]
    fn a_refusal_names_the_object_and_the_table() {
        let exemption = ProbeExemption {
            cgroup: Some(KubeletCgroup { level: 2, id: 7 }),
            source: ProbeAddresses::default(),
            pods: ["10.0.0.1".parse().unwrap()].into(),
        };
        let batch = exemption.batch().unwrap();
        let mut objects: Vec<_> = (1..=batch.last()).map(|at| batch.object(at).to_string()).collect();
        objects.dedup();
        assert_eq!(
            objects,
            [
                "table inet gybe-probes",
                "chain output of table inet gybe-probes",
                "chain postrouting of table inet gybe-probes",
                "set pods-v4 of table inet gybe-probes",
                "set pods-v6 of table inet gybe-probes",
                "rule \"label-probe-v4\" of table inet gybe-probes",
                "rule \"probe-v4\" of table inet gybe-probes",
                "rule \"label-probe-v6\" of table inet gybe-probes",
                "rule \"probe-v6\" of table inet gybe-probes",
            ]
        );
    }

    #[test]
    fn only_a_rule_that_the_kernel_does_not_know_widens_the_exemption() {
        let refused = |rule, source| {
            let object = BatchObject::Exemption(E::Rule(rule));
            cannot_match(&NftError::Refused {
                object,
                kernel_message: None,
                lacking: None,
                others: 0,
                source,
            })
        };
        for source in [Errno::ENOENT, Errno::EOPNOTSUPP, Errno::EINVAL, Errno::ERANGE] {
            assert!(refused("label-probe-v4", source) && refused("label-probe-v6", source), "{source}");
            assert!(!refused("probe-v4", source), "{source}");
        }
        for source in [Errno::EPERM, Errno::ENOMEM, Errno::ENOBUFS, Errno::EMFILE] {
            assert!(!refused("label-probe-v4", source), "{source}");
        }
    }
}
