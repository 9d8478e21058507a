//! What nodes divide, and what is kept for whom.

use super::given::Given;

#[test]
fn several_nodes_divide_what_is_configured() {
    let config = "[node]\ninstances = 2\n[providers.p]\nkind = 'embedded'\nslots = 5\nguaranteed = { draft = 2 }\n\
                  [agents.draft]\nslots = 0\n[agents.review.breaker]\ntrials = 3\n";
    let settings = Given::config(config).settings();
    assert_eq!(settings.instances, 2);
    let provider = &settings.provider("p").unwrap().settings;
    assert_eq!((provider.slots, provider.guaranteed[0].1, provider.breaker.trials), (Some(2), 1, 2));
    let (draft, review) = (settings.agent("draft").unwrap(), settings.agent("review").unwrap());
    assert_eq!((draft.settings.slots, draft.settings.breaker.trials), (0, 2), "closed stays closed");
    assert_eq!((review.settings.slots, review.settings.breaker.trials), (5, 1));
    let config = "[node]\ninstances = 4\n[providers.p]\nkind = 'openai'\nbase_url = 'http://h'\nflavor = 'llama_cpp'\n\
                  [agents.draft]\nslots = 3\n[agents.draft.breaker]\ntrials = 2\n";
    Given::config(config).only(&[]).refused(&[
        "w.toml:3: providers.p.slots = 1: falls under 1 when divided by node.instances = 4",
        "w.toml:8: agents.draft.slots = 3: falls under 1 when divided by node.instances = 4",
        "w.toml:10: agents.draft.breaker.trials = 2: falls under 1 when divided by node.instances = 4",
    ]);
}

#[test]
fn guaranteed_shares_must_fit() {
    let check = |slots: &str, guaranteed: &str, lines: &[&str]| {
        let provider = format!("[providers.p]\nkind = 'embedded'\n{slots}\nguaranteed = {guaranteed}\n");
        let given = Given::config(&provider);
        if lines.is_empty() { assert_eq!(given.settings().warnings, []) } else { given.refused(lines) }
    };
    check("slots = 4", "{}", &[]);
    check("slots = 4", "{ draft = 2 }", &[]);
    check("slots = 4", "{ draft = 0 }", &[]);
    check("slots = 4", "{ draft = 3, review = 1 }", &[]);
    check(
        "slots = 4",
        "{ draft = 3 }",
        &[
            "w.toml:3: providers.p.slots = 4: is too few: guaranteed shares need 5 (3 configured, 1 agents with the usual share)",
        ],
    );
    check(
        "slots = 4",
        "{ draft = 3, nobody = 2 }",
        &[
            "w.toml:3: providers.p.slots = 4: is too few: guaranteed shares need 5 (5 configured, 0 agents with the usual share)",
            "w.toml:4: providers.p.guaranteed.nobody = 2: names no agent of this provider",
        ],
    );
    check(
        "",
        "{ draft = 3 }",
        &[
            "w.toml:4: providers.p.guaranteed.draft = 3: means nothing without providers.p.slots or providers.p.adaptive",
        ],
    );
    check(
        "slots = 4",
        "{ draft = -1 }",
        &["w.toml:4: providers.p.guaranteed.draft = -1: must be a whole number from 0 to 100000"],
    );
    Given::config("[providers.p]\nkind = 'embedded'\nslots = 1")
        .warned(&["w.toml:3: providers.p.slots = 1: is fewer than its 2 agents: none of them has a guaranteed share"]);
}
