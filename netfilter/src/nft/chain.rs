//! The table, and the type, hook and priority of each of its chains, with the reasons.

use crate::kernel::netlink::attr::{Attributes, Writer};
use crate::kernel::uapi::{
    NF_ACCEPT, NFTA_CHAIN_HOOK, NFTA_CHAIN_POLICY, NFTA_CHAIN_TYPE, NFTA_HOOK_HOOKNUM, NFTA_HOOK_PRIORITY,
};
use crate::model::ruleset::{ChainName, Hook, Stage};

/// The table's name, family `inet`. All of Gybe's nftables objects are in it, and no other owner's.
pub const TABLE: &str = "gybe";

/// Before conntrack looks up the packet (`NF_IP_PRI_CONNTRACK` is -200): the rules choose the zone of the lookup.
const RAW: i32 = -300;

/// After conntrack, before address translation: the rules that set marks test conntrack's state.
const MANGLE: i32 = -150;

/// `NF_IP_PRI_NAT_DST` on both hooks. On output, where redirecting is destination NAT too, `nft` refuses the name
/// `dstnat` and accepts the number.
const NAT: i32 = -100;

/// What makes a chain a base chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Base {
    kind: Vec<u8>,
    hook: u32,
    priority: i32,
    policy: u32,
}

impl Base {
    /// The hook of that chain; `None` for a chain that only rules lead to.
    pub(super) fn of(chain: ChainName) -> Option<Self> {
        let hook = chain.hook()?;
        let (kind, priority) = match (chain.stage(), hook) {
            (Stage::Raw, _) => ("filter", RAW),
            // A `route` chain routes a packet again when its mark was changed, which sends the
            // application's replies back through the proxy's transparent socket.
            (Stage::Mangle, Hook::Output) => ("route", MANGLE),
            (Stage::Mangle, _) => ("filter", MANGLE),
            (Stage::Nat, _) => ("nat", NAT),
        };
        // A packet without a matching rule continues as without Gybe.
        Some(Self::accepting(kind, hook, priority))
    }

    /// A base chain with the policy `accept`.
    pub(super) fn accepting(kind: &str, hook: Hook, priority: i32) -> Self {
        Self { kind: kind.into(), hook: hook.number(), priority, policy: NF_ACCEPT }
    }

    /// Reads it from a chain's attributes; `None` for a chain without a hook.
    pub(crate) fn read(chain: &Attributes<'_>) -> Option<Self> {
        let hook = Attributes::of(chain.get(NFTA_CHAIN_HOOK)?.value);
        Some(Self {
            kind: chain.get(NFTA_CHAIN_TYPE)?.text().to_vec(),
            hook: hook.be32(NFTA_HOOK_HOOKNUM)?,
            priority: hook.be32(NFTA_HOOK_PRIORITY)?.cast_signed(),
            policy: chain.be32(NFTA_CHAIN_POLICY)?,
        })
    }

    /// Its priority, when it translates destinations: those of packets that arrive or leave.
    pub(crate) fn translates_at(&self) -> Option<i32> {
        let hooks = [Hook::Prerouting, Hook::Output].map(Hook::number);
        let translates = self.kind == b"nat" && hooks.contains(&self.hook);
        translates.then_some(self.priority)
    }

    /// Writes it as attributes of a chain.
    pub(super) fn write(&self, w: &mut Writer) {
        w.nested(NFTA_CHAIN_HOOK, |w| {
            w.be32(NFTA_HOOK_HOOKNUM, self.hook);
            w.be32(NFTA_HOOK_PRIORITY, self.priority.cast_unsigned());
        });
        w.be32(NFTA_CHAIN_POLICY, self.policy);
        w.attr(NFTA_CHAIN_TYPE, &self.kind);
    }
}

/// The base of a chain as comparable bytes; empty for a chain without a hook.
pub(super) fn form(base: Option<&Base>) -> Vec<u8> {
    let mut writer = Writer::default();
    if let Some(base) = base {
        base.write(&mut writer);
    }
    writer.finish().unwrap_or_default()
}
