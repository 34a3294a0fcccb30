//! What must become of a connection under a policy, from its rules alone: the fate of its first
//! packet, who listens where that leads, and whether the answers come back. No packet is sent here.

use crate::foretell::foretell;
use crate::untouched::TRANSPARENT;
use crate::vectors::{Flow, Location};
use gybe_installer::testnet::outcome::ConnectionOutcome;
use gybe_netfilter::compile::PASSTHROUGH_V6;
use gybe_netfilter::policy::{Families, InterfaceName, InterfaceNameError, Mode, Port, RedirectPolicy};
use gybe_netfilter::ruleset::Ruleset;
use gybe_netfilter::trace::{self, Connection, ConnectionPhase, Direction, Packet, trace};
use nix::errno::Errno;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

impl Flow {
    /// The same connection with what must become of it under `policy`, whose rules these are.
    ///
    /// # Errors
    /// Never, as long as `foretell` names real interfaces.
    pub fn foretold(self, policy: &RedirectPolicy, rules: &Ruleset) -> Result<Self, InterfaceNameError> {
        let with_rules = self.fate(policy, rules)?;
        Ok(Self { with_rules, ..self })
    }

    fn fate(
        &self,
        policy: &RedirectPolicy,
        rules: &Ruleset,
    ) -> Result<ConnectionOutcome, InterfaceNameError> {
        // `::6` is on lo only when IPv6 is redirected.
        if policy.families == Families::V4Only && self.source == Some(PASSTHROUGH_V6.into()) {
            return Ok(ConnectionOutcome::Failed(Errno::EADDRNOTAVAIL));
        }
        Ok(match foretell(rules, self)?.outcome {
            trace::PacketOutcome::Dropped => ConnectionOutcome::Timeout,
            trace::PacketOutcome::Intercepted(port) if !TRANSPARENT.contains(&port.get()) => {
                ConnectionOutcome::Timeout
            }
            trace::PacketOutcome::Intercepted(port) | trace::PacketOutcome::Redirected(port) => {
                self.turned_to(port)
            }
            trace::PacketOutcome::Untouched if self.loses_its_answers(policy, rules)? => {
                ConnectionOutcome::Timeout
            }
            trace::PacketOutcome::Untouched => self.untouched(),
        })
    }

    fn turned_to(&self, port: Port) -> ConnectionOutcome {
        let loopback = match self.to {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        self.in_the_pod(SocketAddr::new(loopback, port.get()))
    }

    /// With TPROXY the later packets of whatever connection are delivered to the pod itself, also
    /// the answers to one that only passes through and whose question came by an interface that is
    /// left alone (recorded: random-030).
    fn loses_its_answers(
        &self,
        policy: &RedirectPolicy,
        rules: &Ruleset,
    ) -> Result<bool, InterfaceNameError> {
        let Mode::Tproxy { mark, .. } = policy.mode else { return Ok(false) };
        if !self.is_forwarded() {
            return Ok(false);
        }
        let question = self.packet()?;
        let by = InterfaceName::parse(if self.from == Location::Vm { "eth0" } else { "eth1" })?;
        let answer =
            Packet::first(Direction::Arrives { by }, self.transport, question.destination, question.source);
        let connection = Connection { phase: ConnectionPhase::Established, ..answer.connection };
        Ok(trace(rules, &Packet { connection, ..answer }).mark == mark)
    }
}
