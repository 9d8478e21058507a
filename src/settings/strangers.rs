//! Tables of agents that nobody asks for and whose name is nearly that of somebody who is asked for: most likely a slip, by which the
//! settings were meant for another agent and make one more. Only suggests: an agent may be there for callers alone.

use std::collections::BTreeSet;

use super::{
    ladder::named_in_ladders,
    load::Sources,
    node::{Node, Table, key_path},
    problem::{Origin, Problem},
    report::Report,
    tree::lay_over,
};
use crate::model::{name::Name, nearest::nearest};

/// A warning for each table of an agent that is nobody's, while an agent of nearly that name is asked for and has no table of its own.
/// `asked` are the agents that workflows name and those that have a folder in the project.
pub fn misspelt_agents(sources: &Sources<'_>, asked: &[Name]) -> Vec<Problem> {
    // What is wrong with the layers is told where they are read.
    let root = lay_over(sources, &mut Report::default());
    let Some(agents) = root.get("agents").and_then(Node::as_table) else { return Vec::new() };
    let in_ladders = named_in_ladders(agents);
    let asked: BTreeSet<&str> = asked.iter().map(Name::as_str).chain(in_ladders.iter().map(String::as_str)).collect();
    let with_folder: BTreeSet<&str> = sources.agent_folders.iter().map(|folder| folder.name.as_str()).collect();
    let is_nobodys = |name: &str| !asked.contains(name) && !with_folder.contains(name);
    // Who has a table is not meant by another one.
    let meant = || asked.iter().copied().filter(|name| !is_written(agents, name));
    let strangers = agents.iter().filter(|(name, _)| is_written(agents, name) && is_nobodys(name));
    strangers
        .filter_map(|(name, node)| {
            let near = nearest(name, meant())?;
            let rule = format!(
                "is one more agent, and no workflow, ladder or folder names it; did you mean {near:?}, which has no table of its own?"
            );
            Some(Problem { origin: node.origin.clone(), key: key_path("agents", name), value: None, rule })
        })
        .collect()
}

/// Whether anybody wrote about this agent.
fn is_written(agents: &Table, name: &str) -> bool {
    agents
        .get(name)
        .is_some_and(|node| node.origin != Origin::Default || node.as_table().is_none_or(|own| !own.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::tests::Given;

    /// The names that are doubted, each with what it may mean. The folders are those of `draft` and `review`.
    #[test]
    fn a_table_of_nobody_is_doubted_where_a_name_is_near() {
        for (text, asked, doubted) in [
            ("[agents.darft]", &["draft"][..], &[("darft", "draft")][..]),
            ("[agents.darft]\n[agents.rewiev]", &["draft", "review"], &[("darft", "draft"), ("rewiev", "review")]),
            // Named by a workflow, by a ladder, or by its folder.
            ("[agents.drafts]", &["draft", "drafts"], &[]),
            ("[agents.draft]\nladder = { lighter = 'agent:drafts' }\n[agents.drafts]", &["draft"], &[]),
            ("[agents.review]", &["reviews"], &[]),
            // Both are written: a second one, not a slip.
            ("[agents.draft]\n[agents.draft2]", &["draft"], &[]),
            // Nothing is near, or nobody is asked for.
            ("[agents.writer]", &["draft"], &[]),
            ("[agents.darft]", &[], &[]),
            // A ladder names whom a table misspells.
            (
                "[agents.small_]\n[agents.draft]\nladder = { lighter = ['agent:small'] }",
                &["draft"],
                &[("small_", "small")],
            ),
        ] {
            let asked: Vec<Name> = asked.iter().map(|name| Name::try_new(name).unwrap()).collect();
            let given = Given::config(text);
            let found = given.with_sources(|sources| misspelt_agents(sources, &asked));
            let shown: Vec<String> = found.iter().map(ToString::to_string).collect();
            assert_eq!(shown.len(), doubted.len(), "{text}: {shown:?}");
            for (line, (name, meant)) in shown.iter().zip(doubted) {
                assert!(line.contains(&format!("agents.{name}: ")) && line.contains(&format!("{meant:?}")), "{line}");
            }
        }
        let flag = Given::nothing().flag("agents.darft.slots=3");
        let asked = [Name::try_new("draft").unwrap()];
        let found = flag.with_sources(|sources| misspelt_agents(sources, &asked));
        assert_eq!(found.len(), 1, "a flag makes an agent as well");
        assert!(found[0].to_string().starts_with("--set agents.darft.slots: agents.darft: "), "{}", found[0]);
    }
}
