# The same recipes as .ci/run, one at a time. `just` lists them.

default:
    @just --list

# All that a machine checks
ci:
    .ci/run

fmt:
    cargo fmt --all

lint:
    cargo fmt --all --check
    cargo clippy --locked --all-targets --features model -- -D warnings

# The floors build alone
features:
    cargo check --locked --no-default-features --lib
    cargo check --locked --no-default-features --lib --features runtime
    cargo check --locked --no-default-features --lib --features http
    cargo check --locked --no-default-features --lib --features serve

test:
    cargo test

# The guards under a scheduler that tries interleavings; WATERTIGHT_MODEL_RUNS=100000 for a night
model:
    cargo test --locked --lib --features model -- runtime::tests::model

build:
    cargo build --locked --release --bins --examples

# The reference job: photos and notes in, a blog post out
momently *ARGS:
    cargo run --release -- run examples/momently {{ARGS}}

# One agent of four falls ill and recovers
one-sick-agent:
    cargo run --release --example one_sick_agent

# Breaker vectors, from files
conformance +FILES:
    cargo run --release --example breaker_conformance -- {{FILES}}

bench:
    cargo bench

doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps

# Licences, bans, advisories; needs cargo-deny
deny:
    cargo deny check
