//! State that packets change: elements of sets, and conntrack's expectations.

use super::expr::{Expr, use_of_object};
use super::{Statement, location, places};
use crate::inspect::live::NAMED;
use crate::inspect::live::rules::NamespaceRules;
use crate::xt::XtTarget;

/// Marks the sets that rules add to, decodes references to objects by map, and names in `opaque` the rules that decide
/// about expected connections instead of the packet's own. Gybe writes no such rule.
pub(super) fn mark(rules: &mut NamespaceRules) {
    let NamespaceRules { chains, sets, opaque, .. } = rules;
    let set_places = places(sets.iter().map(|set| (&set.table, &set.name)));
    for chain in chains {
        let in_table = set_places.get(&chain.table);
        let place_of = |name: &String| in_table.and_then(|places| places.get(name)).copied();
        let location = location(chain);
        for rule in &mut chain.rules {
            for statement in &mut rule.statements {
                match statement {
                    Statement::Expr(Expr::Update(name)) => {
                        if let Some(set) = place_of(name).and_then(|at| sets.get_mut(at)) {
                            set.is_dynamic = true;
                        }
                    }
                    Statement::Expr(Expr::ObjectOf(name)) => {
                        // 0, `NFT_OBJECT_UNSPEC`, for a map that is gone.
                        let kind = place_of(name).and_then(|at| sets.get(at)).map_or(0, |map| map.objects);
                        *statement = Statement::Expr(match use_of_object(kind, &format!("@{name}")) {
                            // A packet whose key is not in the map does not pass.
                            Expr::Nothing(text) => Expr::Test(text),
                            other => other,
                        });
                    }
                    _ => {}
                }
            }
            if opaque.len() >= NAMED {
                continue;
            }
            let expectation = rule.statements.iter().find_map(|statement| match statement {
                Statement::Expr(Expr::OtherConnections(text)) => Some(text.clone()),
                Statement::Expr(Expr::Target(XtTarget::Tracking(tracking)))
                | Statement::Target(XtTarget::Tracking(tracking)) => {
                    (!tracking.helper.is_empty()).then(|| format!("ct helper {}", tracking.helper))
                }
                _ => None,
            });
            if let Some(what) = expectation {
                opaque
                    .push(format!("{what} decides where expected connections go: {location}: {}", rule.text));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::live::rules::constructed::{chain, namespace, rule};
    use crate::inspect::live::rules::{ChainKind, Set};
    use crate::model::ruleset::Hook;

    #[test]
    fn sets_that_rules_add_to_change_and_helpers_decide_about_other_connections() {
        const COUNTER: u32 = 1;
        const HELPER: u32 = 3;
        let at = (Hook::Output, 0);
        let chain = |table: &str, exprs: Vec<Expr>| chain(table, ChainKind::Filter, at, vec![rule(exprs)]);
        let set = |table: &str, name: &str, objects| Set {
            table: chain(table, vec![]).table,
            name: name.to_owned(),
            key_length: 4,
            is_interval: false,
            parts: Vec::new(),
            objects,
            is_dynamic: false,
            elements: Vec::new(),
            catch_all: None,
        };
        let of = |name: &str| Expr::ObjectOf(name.to_owned());
        let mut found = namespace(vec![
            chain("one", vec![Expr::Update("seen".to_owned()), of("counters"), of("helpers"), of("gone")]),
            chain("two", vec![of("helpers")]),
        ]);
        found.sets = vec![
            set("two", "seen", 0),
            set("one", "seen", 0),
            set("one", "counters", COUNTER),
            set("one", "helpers", HELPER),
            set("two", "helpers", HELPER),
        ];
        mark(&mut found);
        let dynamic: Vec<bool> = found.sets.iter().map(|set| set.is_dynamic).collect();
        assert_eq!(dynamic, [false, true, false, false, false]);
        let text = format!("{:?}", found.chains[0].rules[0].statements);
        for part in [
            r#"Test("counter @counters")"#,
            r#"OtherConnections("ct helper @helpers")"#,
            r#"Unknown("object @gone")"#,
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let expected = ["one", "two"].map(|table| {
            let at = format!("hook output priority 0, inet {table} base");
            format!("ct helper @helpers decides where expected connections go: {at}: ")
        });
        assert_eq!(found.opaque, expected);
    }
}
