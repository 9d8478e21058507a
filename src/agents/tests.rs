//! The bundled agents together: promised shapes, golden replies, prompts, the reference workflow's data from step to step,
//! real photos, and arbitrary input. The rules of each twin are tested beside it.

use std::{collections::BTreeMap, path::PathBuf};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    bundled,
    embedded::{NAMES, by_name},
};

fn run(agent: &str, input: &Value) -> Value {
    by_name(agent).unwrap().compute(input).unwrap_or_else(|failure| panic!("{agent}: {failure:?}"))
}

fn schema(agent: &str) -> jsonschema::Validator {
    let text = bundled::by_name(agent).unwrap().text("schema.json").unwrap();
    jsonschema::validator_for(&serde_json::from_str(text).unwrap()).unwrap()
}

fn assert_promised(agent: &str, output: &Value) {
    if let Err(error) = schema(agent).validate(output) {
        panic!("{agent} breaks its schema at {}: {error}\n{output:#}", error.instance_path());
    }
    assert_eq!((&output["by"], &output["model"]), (&json!("embedded"), &Value::Null), "{agent}");
}

/// The form of an id; whose file it names is not the agent's to know.
const FILE: &str = "file-0123456789abcdef0123456789abcdef";

/// The author's own reference input, or real photos that are not part of the repository.
fn photo_files(folder: &std::path::Path) -> Value {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let item = |path: &PathBuf| json!({ "name": path.file_name().unwrap().to_str(), "path": path, "bytes": 1, "file_id": FILE });
    files.iter().map(item).collect()
}

fn shared() -> Option<PathBuf> {
    let beside = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared"));
    let folder = std::env::var_os("WATERTIGHT_SHARED").map_or(beside, PathBuf::from);
    if folder.is_dir() {
        return Some(folder);
    }
    println!("skipped: no folder {}", folder.display());
    None
}

fn example(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples/momently").join(path)
}

fn reference_input() -> Value {
    let text = |path: &str| std::fs::read_to_string(example(path)).unwrap();
    let earlier = ["2024-10-gangneung.md", "2025-02-seochon.md"]
        .map(|name| json!({ "name": name, "text": text(&format!("input/earlier/{name}")) }));
    json!({
        "photos": photo_files(&example("input/photos")),
        "notes": text("input/notes.md"),
        "earlier": earlier,
        "language": null,
        "places": null,
    })
}

/// Walks the reference workflow's steps in their order by its own expressions; the engine has tests of its own.
struct Walk {
    workflow: toml::Table,
    input: Value,
    outputs: BTreeMap<String, Value>,
    prompts: BTreeMap<String, String>,
}

impl Walk {
    fn of(input: Value) -> Self {
        let text = std::fs::read_to_string(example("workflow.toml")).unwrap();
        let workflow = text.parse().unwrap();
        let mut walk = Self { workflow, input, outputs: BTreeMap::new(), prompts: BTreeMap::new() };
        for step in walk.workflow["step"].as_array().unwrap().clone() {
            let id = step["id"].as_str().unwrap();
            let agent = step["agent"].as_str().unwrap();
            let step_input = walk.values(step["in"].as_table().unwrap(), &Value::Null);
            let output = run(agent, &step_input);
            assert_promised(agent, &output);
            let prompt = rendered(agent, &step_input);
            walk.prompts.insert(agent.to_owned(), prompt);
            walk.outputs.insert(id.to_owned(), output);
        }
        walk
    }

    fn values(&self, expressions: &toml::Table, revision: &Value) -> Value {
        let engine = strict_engine();
        let steps: BTreeMap<_, _> = self.outputs.iter().map(|(id, output)| (id, json!({ "output": output }))).collect();
        let context = minijinja::Value::from(minijinja::value::Serde(
            json!({ "input": self.input, "steps": steps, "revision": revision }),
        ));
        let value_of = |text: &str| {
            let value = engine
                .compile_expression(text)
                .unwrap()
                .eval(context.clone())
                .unwrap_or_else(|error| panic!("{text}: {error}"));
            serde_json::to_value(value).unwrap()
        };
        expressions
            .iter()
            .map(|(key, text)| (key.clone(), value_of(text.as_str().unwrap())))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }

    fn output(&self) -> Value {
        self.values(self.workflow["workflow"]["output"].as_table().unwrap(), &Value::Null)
    }
}

fn strict_engine() -> minijinja::Environment<'static> {
    let mut engine = minijinja::Environment::new();
    engine.set_undefined_behavior(minijinja::UndefinedBehavior::Strict);
    engine
}

fn rendered(agent: &str, input: &Value) -> String {
    let Some(prompt) = bundled::by_name(agent).unwrap().text("prompt.md") else { return String::new() };
    let rendered =
        strict_engine().render_str(prompt, minijinja::Value::from(minijinja::value::Serde(json!({ "input": input }))));
    rendered.unwrap_or_else(|error| panic!("{agent}: {error:#}"))
}

fn positions(text: &str, names: &[&str]) -> Vec<usize> {
    names.iter().map(|name| text.find(name).unwrap_or_else(|| panic!("{name} is missing in\n{text}"))).collect()
}

fn assert_in_order(text: &str, names: &[&str]) {
    let found = positions(text, names);
    assert!(found.is_sorted(), "{names:?} stand at {found:?} in\n{text}");
}

#[test]
fn every_agent_has_a_twin_and_a_readable_manifest() {
    for agent in bundled::all() {
        let manifest: toml::Table = agent.text("agent.toml").unwrap().parse().unwrap();
        let twin = manifest["embedded"].as_str().unwrap();
        assert!(NAMES.contains(&twin) && by_name(twin).is_some(), "{}", agent.name);
        assert!(manifest["description"].as_str().is_some_and(|text| !text.is_empty()));
        assert_eq!(agent.text("prompt.md").is_some(), manifest.contains_key("max_output_tokens"), "{}", agent.name);
    }
    assert!(by_name("nobody").is_none());
}

#[test]
fn golden_replies_get_their_verdict() {
    for agent in bundled::all() {
        let promised = schema(agent.name);
        let mut verdicts = [0, 0];
        for file in agent.files.iter().filter(|file| file.path.starts_with("replies/")) {
            let golden: Value = serde_json::from_slice(file.content).unwrap();
            let is_good = match golden.get("raw").and_then(Value::as_str) {
                Some(raw) => serde_json::from_str(raw).is_ok_and(|output: Value| promised.is_valid(&output)),
                None => promised.is_valid(&golden["output"]),
            };
            let verdict = if is_good { "success" } else { "bad_reply" };
            assert_eq!(golden["verdict"], verdict, "{} {}: {}", agent.name, file.path, golden["why"]);
            verdicts[usize::from(is_good)] += 1;
        }
        assert!(verdicts.iter().all(|count| *count > 0), "{}: {verdicts:?}", agent.name);
    }
}

#[test]
fn the_reference_input_becomes_a_post_in_the_authors_voice() {
    let walk = Walk::of(reference_input());
    let output = walk.output();
    let markdown = output["markdown"].as_str().unwrap();
    assert_in_order(
        markdown,
        &[
            "01-tumuli.jpg",
            "02-observatory.jpg",
            "03-observatory-rape-flowers.jpg",
            "04-tiled-roofs.jpg",
            "05-bridge-at-dusk.jpg",
            "06-palace-pond.jpg",
        ],
    );
    assert_in_order(
        markdown,
        &["## 대릉원", "흙길이 조용했어요.", "## 첨성대", "## 교촌마을", "## 월정교", "## 동궁", "불국사"],
    );
    assert!(markdown.starts_with("# 경주 하루 걷기\n"), "{markdown}");
    assert!(markdown.contains("2025년 4월 12일 토요일"));
    assert!(markdown.contains("안녕하세요!") && markdown.contains("오늘도 읽어 주셔서 고마워요."));
    let voice = &walk.outputs["style"];
    assert_eq!((&voice["ending"], &voice["basis"]), (&json!("yo"), &json!(2)));
    let post_voice = run("style", &json!({ "earlier": [{ "name": "post", "text": walk.outputs["draft"]["text"] }] }));
    assert!(post_voice["ending_shares"]["yo"].as_f64().unwrap() > 0.7, "{post_voice:#}");
    assert!(walk.outputs["review"]["score"].as_u64().unwrap() >= 80, "{:#}", walk.outputs["review"]);
    let again = Walk::of(reference_input()).output();
    assert_eq!(output, again, "the twins are deterministic");
}

#[test]
fn english_notes_make_an_english_post() {
    let mut input = reference_input();
    input["notes"] = json!(
        "Took the first train to Gyeongju on Saturday, alone.\n\nAround 9 I walked among the tumuli. Nobody spoke.\n\n\
         10:30 at the old observatory, rape flowers everywhere. Smaller than expected\n\n- Lunch near the Gyochon walls: cold noodles\n\n\
         At 6 pm the Woljeong bridge turned red\n7:30 pm Donggung palace. The pond held the lights\n\nSlept all the way back home."
    );
    input["earlier"] = json!([{ "name": "a", "text": "We went to the sea. It was cold, and we stayed until dark 🙂 The tea helped." }]);
    let walk = Walk::of(input);
    let output = walk.output();
    let markdown = output["markdown"].as_str().unwrap();
    assert_in_order(
        markdown,
        &[
            "Gyeongju",
            "among the tumuli",
            "01-tumuli.jpg",
            "rape flowers",
            "02-obs",
            "cold noodles",
            "04-tiled",
            "turned red",
            "05-bridge",
            "06-palace",
            "Slept",
        ],
    );
    assert!(walk.outputs["review"]["score"].as_u64().unwrap() >= 80, "{:#}", walk.outputs["review"]);
}

#[test]
fn the_same_day_in_english_and_without_notes() {
    let mut input = reference_input();
    input["notes"] = Value::Null;
    input["earlier"] = Value::Null;
    input["language"] = json!("en");
    let output = Walk::of(input).output();
    let markdown = output["markdown"].as_str().unwrap();
    assert_in_order(markdown, &["Six pictures from 12 April 2025", "01-tumuli.jpg", "06-palace-pond.jpg", "no notes"]);
    assert!(!markdown.contains("사진"), "{markdown}");
}

#[test]
fn nine_real_photos_stand_in_their_order_with_date_and_stops() {
    let Some(folder) = shared() else { return };
    let mut names: Vec<String> = Vec::new();
    let files = photo_files(&folder.join("data/photos-arezzo"));
    for file in files.as_array().unwrap() {
        names.push(file["name"].as_str().unwrap().to_owned());
    }
    assert_eq!(names.len(), 9);
    for (language, date, stop) in
        [("ko", "2008년 10월 22일", "## 첫 번째 자리"), ("en", "22 October 2008", "## Stop 1")]
    {
        let input = json!({ "photos": files, "notes": null, "earlier": null, "language": language, "places": null });
        let walk = Walk::of(input);
        let output = walk.output();
        let markdown = output["markdown"].as_str().unwrap();
        assert_in_order(markdown, &names.iter().map(String::as_str).collect::<Vec<_>>());
        assert_in_order(markdown, &[date, stop, "43.47°N 11.89°E"]);
        let stops = walk.outputs["photos"]["stops"].as_array().unwrap().len();
        assert!((2..9).contains(&stops), "{stops} stops");
        assert_eq!(markdown.matches("\n## ").count(), stops);
        assert!(walk.outputs["review"]["score"].as_u64().unwrap() >= 80, "{:#}", walk.outputs["review"]);
    }
}

#[test]
fn places_are_told_only_where_they_are_allowed() {
    let mut input = reference_input();
    for (places, is_told) in [(json!(null), true), (json!("rounded"), true), (json!("never"), false)] {
        input["places"] = places.clone();
        let walk = Walk::of(input.clone());
        let text = format!("{:?} {:?} {}", walk.outputs, walk.prompts, walk.output());
        assert_eq!(text.contains("35.8"), is_told, "{places}");
        assert_eq!(text.contains("°N"), is_told, "{places}");
        assert!(!text.contains("35.838") && !text.contains("129.210"), "more than two decimals with {places}");
        assert!(!text.contains(env!("CARGO_MANIFEST_DIR")), "a path of this machine with {places}");
    }
}

#[test]
fn prompts_say_what_a_model_needs() {
    let walk = Walk::of(reference_input());
    for (agent, wanted) in [
        ("style", vec!["Text 2:", "안목해변", "\"description\""]),
        (
            "draft",
            vec![
                "in Korean",
                "Stop 5",
                "09:14",
                "![06-palace-pond.jpg]",
                "6 photo lines",
                "첨성대",
                "-어요",
                "no title line",
            ],
        ),
        ("review", vec!["06-palace-pond.jpg", "2025-04-12", "\"score\"", "첨성대"]),
        ("meta", vec!["in Korean", "\"tags\"", "대릉원"]),
    ] {
        for word in wanted {
            assert!(walk.prompts[agent].contains(word), "{agent}: {word} is missing in\n{}", walk.prompts[agent]);
        }
    }
    // What an engine or a thinner backend may hand over: nothing given, a default voice, bare facts, a revision.
    let bare = json!({ "photos": [{ "name": "a.jpg", "usable": true }], "stops": [] });
    let feedback = json!({ "score": 10, "reasons": [{ "text": "No date." }] });
    for (agent, input) in [
        ("style", json!({ "earlier": null, "notes": null, "language": null })),
        ("style", json!({ "earlier": [{ "name": "a", "text": null }], "notes": "메모", "language": "ko" })),
        ("draft", json!({ "photos": bare, "style": null, "notes": null, "language": null, "revision": null })),
        (
            "draft",
            json!({ "photos": null, "style": { "language": "", "description": "Plain." }, "notes": "x", "language": "",
                "revision": { "iteration": 1, "candidate": { "text": "Old." }, "feedback": feedback } }),
        ),
        (
            "draft",
            json!({ "photos": bare, "style": null, "notes": "x", "language": "ko",
            "revision": { "iteration": 1, "candidate": null, "feedback": null } }),
        ),
        ("review", json!({ "draft": "x", "photos": bare, "style": null, "notes": null, "language": null })),
        ("meta", json!({ "draft": "x", "photos": bare, "notes": null, "language": "" })),
    ] {
        assert!(!rendered(agent, &input).is_empty());
    }
}

#[test]
fn a_photo_that_is_no_photo_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    write("empty.jpg", b"");
    write("garbage-exif.jpg", b"\xFF\xD8\xFF\xE1\x00\x10Exif\0\0MM\0\x2a\xff\xff\xff\xff\xFF\xD9");
    write("text.jpg", b"this is a text");
    let large = std::fs::File::create(write("large.jpg", b"")).unwrap();
    large.set_len(200 * 1024 * 1024).unwrap();
    std::fs::create_dir(folder.path().join("folder.jpg")).unwrap();
    std::fs::copy(example("input/photos/01-tumuli.jpg"), folder.path().join("good.jpg")).unwrap();
    let mut files = photo_files(folder.path());
    files
        .as_array_mut()
        .unwrap()
        .push(json!({ "name": "missing.jpg", "path": folder.path().join("missing.jpg"), "file_id": FILE }));
    let output = run("photos", &json!({ "photos": files }));
    assert_promised("photos", &output);
    let by_name: BTreeMap<&str, &Value> =
        output["photos"].as_array().unwrap().iter().map(|photo| (photo["name"].as_str().unwrap(), photo)).collect();
    assert_eq!(by_name.len(), 7);
    for (name, usable, problem) in [
        ("good.jpg", true, None),
        ("garbage-exif.jpg", true, Some("the EXIF data has no readable time")),
        ("empty.jpg", false, Some("the file is empty")),
        ("text.jpg", false, Some("the file is no picture")),
        ("large.jpg", false, Some("the file is too large: 200 MiB")),
        ("folder.jpg", false, Some("the path names no file")),
        ("missing.jpg", false, Some("the file cannot be read")),
    ] {
        let photo = by_name[name];
        assert_eq!(photo["usable"], usable, "{name}");
        match problem {
            Some(problem) => assert!(photo["problem"].as_str().unwrap().starts_with(problem), "{photo}"),
            None => assert_eq!(photo["problem"], Value::Null, "{name}"),
        }
    }
    assert_eq!(by_name["good.jpg"]["camera"], "Watertight Paintbox 5");
    assert_eq!((&by_name["good.jpg"]["width"], &by_name["good.jpg"]["height"]), (&json!(720), &json!(480)));
    let draft = run("draft", &json!({ "photos": output, "language": "ko" }));
    let text = draft["text"].as_str().unwrap();
    for name in by_name.keys() {
        assert!(text.contains(name), "{name} is lost in\n{text}");
    }
    assert!(!text.contains("](text.jpg)"));
}

#[test]
fn a_revision_mends_what_the_review_found() {
    let input = reference_input();
    let photos = run("photos", &json!({ "photos": input["photos"] }));
    let style = run("style", &json!({ "earlier": input["earlier"] }));
    let good = run("draft", &json!({ "photos": photos, "style": style, "notes": input["notes"] }));
    let good_text = good["text"].as_str().unwrap();
    let broken = good_text
        .replace("![02-observatory.jpg](02-observatory.jpg)\n\n", "")
        .lines()
        .filter(|line| !line.contains("2025년") && !line.contains("02-observatory.jpg") && !line.contains("콩국수"))
        .collect::<Vec<_>>()
        .join("\n")
        + "\n\nTODO: 마무리";
    let review = |text: &str| {
        run("review", &json!({ "draft": text, "photos": photos, "style": style, "notes": input["notes"] }))
    };
    let feedback = review(&broken);
    let missing = feedback["missing"].as_array().unwrap();
    assert!(missing.contains(&json!("02-observatory.jpg")) && missing.contains(&json!("2025-04-12")), "{feedback:#}");
    let revision = json!({ "iteration": 1, "candidate": { "text": broken }, "feedback": feedback });
    let mended =
        run("draft", &json!({ "photos": photos, "style": style, "notes": input["notes"], "revision": revision }));
    assert_promised("draft", &mended);
    let text = mended["text"].as_str().unwrap();
    assert_in_order(text, &["2025년 4월 12일", "01-tumuli.jpg", "02-observatory.jpg", "03-observatory", "04-tiled"]);
    assert!(text.contains("콩국수") && !text.contains("TODO"), "{text}");
    assert!(mended["changes"].as_array().unwrap().len() >= 3, "{}", mended["changes"]);
    let (before, after) = (feedback["score"].as_u64().unwrap(), review(text)["score"].as_u64().unwrap());
    assert!(after > before && after >= 95, "{before} then {after}");

    let hopeless = json!({ "iteration": 1, "candidate": null, "feedback": { "reasons": [] } });
    let anew =
        run("draft", &json!({ "photos": photos, "style": style, "notes": input["notes"], "revision": hopeless }));
    assert_eq!(anew["text"], good["text"]);
}

#[test]
fn a_photo_whose_name_markdown_would_misread_is_found_in_the_post() {
    let input = reference_input();
    let odd = ["a[1].jpg", "<script>.jpg", "`b`*.jpg", "new\nline.jpg", "c\\d.jpg"];
    let mut text = serde_json::to_string(&run("photos", &json!({ "photos": input["photos"] }))).unwrap();
    for (photo, name) in input["photos"].as_array().unwrap().iter().zip(odd) {
        text = text.replace(&photo["name"].to_string(), &json!(name).to_string());
    }
    let photos: Value = serde_json::from_str(&text).unwrap();
    let good = run("draft", &json!({ "photos": photos, "notes": input["notes"] }));
    let text = good["text"].as_str().unwrap();
    assert!(!text.contains('<') && !text.contains('`'), "{text}");
    let review = run("review", &json!({ "draft": text, "photos": photos, "notes": input["notes"] }));
    assert_eq!(review["missing"], json!([]), "{review:#}");

    let revision = json!({ "iteration": 1, "candidate": { "text": text }, "feedback": review });
    let again = run("draft", &json!({ "photos": photos, "notes": input["notes"], "revision": revision }));
    let again = again["text"].as_str().unwrap();
    assert_eq!(again.matches("![").count(), text.matches("![").count(), "{again}");
}

#[test]
fn a_bad_draft_gets_few_points() {
    let input = reference_input();
    let photos = run("photos", &json!({ "photos": input["photos"] }));
    for (draft, most) in [("", 25), ("TODO", 20), ("A nice day with nice pictures.", 40)] {
        let review = run("review", &json!({ "draft": draft, "photos": photos, "notes": input["notes"] }));
        assert_promised("review", &review);
        assert!(review["score"].as_u64().unwrap() <= most, "{draft}: {review:#}");
    }
}

#[test]
fn unusable_inputs_are_refused_and_not_tried_again() {
    for (agent, input) in [
        ("photos", json!({ "photos": [{ "name": "a" }] })),
        ("photos", json!({ "photos": [{ "name": "a", "path": "/etc/hosts" }] })),
        ("photos", json!({ "photos": [{ "name": "a", "path": "/etc/hosts", "file_id": "file-abc" }] })),
        ("photos", json!({ "photos": [], "places": "exact" })),
        ("photos", json!("text")),
        ("style", json!({ "earlier": 3 })),
        ("draft", json!({})),
        ("draft", json!({ "photos": [], "notes": "   " })),
        ("draft", json!({ "notes": "x".repeat(300_000) })),
        ("draft", json!({ "notes": "x", "photos": { "photos": [{ "name": 3 }] } })),
        ("review", json!({ "photos": null })),
        ("meta", json!({ "draft": 3 })),
    ] {
        let failure = by_name(agent).unwrap().compute(&input).unwrap_err();
        assert_eq!(failure.status, Some(422), "{agent}");
        assert!(failure.message.contains(agent), "{}", failure.message);
        assert!(matches!(
            failure.ending,
            crate::model::facts::Ending::Status { status: 422, retryable: Some(false), .. }
        ));
    }
}

fn any_photos() -> impl Strategy<Value = Value> {
    let photo = ("[ -~가-힣]{0,12}", proptest::option::of(0_u32..3), any::<bool>()).prop_map(|(name, day, usable)| {
        let taken = day.map(|day| format!("2024-02-{:02}T{:02}:{:02}:00", day + 27, day * 7, day * 19));
        json!({ "name": name, "usable": usable, "taken": taken })
    });
    (proptest::collection::vec(photo, 0..6), proptest::collection::vec("[ -~]{0,6}", 0..4)).prop_map(
        |(photos, loose)| {
            let names: Vec<_> =
                photos.iter().map(|photo| photo["name"].clone()).chain(loose.into_iter().map(Value::from)).collect();
            let stops: Vec<_> = names
                .chunks(2)
                .enumerate()
                .map(|(index, names)| {
                    json!({ "number": index + 1, "first": "2024-02-28T07:19:00", "last": null, "photos": names,
                    "place": { "lat": 1.5, "lon": -2.25 }, "metres_from_previous": index * 400 })
                })
                .collect();
            json!({ "photos": photos, "stops": stops, "distance_metres": 900 })
        },
    )
}

/// Text as people and models write it, and anything else.
fn any_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        "\\PC{0,20}",
        Just("\n\n".to_owned()),
        Just("# 제목\n".to_owned()),
        Just("9시쯤 걸었음. ".to_owned()),
        Just("좋았어요! 😊 ".to_owned()),
        Just("at 9:30 pm in Arezzo, and then, but no. ".to_owned()),
        Just("![a](b".to_owned()),
        Just("TODO {{ [insert".to_owned()),
        Just("대릉원에서 콩국수를 먹었고, 월정교까지 걸었다. ".to_owned()),
    ];
    proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_text_gives_a_promised_shape_or_a_clear_refusal(
        notes in any_text(),
        post in any_text(),
        candidate in any_text(),
        photos in any_photos(),
        language in proptest::option::of(prop_oneof![Just("ko"), Just("en"), Just("")]),
    ) {
        let style = run("style", &json!({ "earlier": [{ "name": "a", "text": post }, { "name": "b", "text": post }], "language": language }));
        assert_promised("style", &style);
        let mut input = json!({ "photos": photos, "style": style, "notes": notes, "language": language });
        let first = by_name("draft").unwrap().compute(&input);
        let Ok(first) = first else {
            let has_photos = !photos["photos"].as_array().unwrap().is_empty();
            prop_assert!(!has_photos && !notes.lines().any(|line| !line.starts_with('#') && line.contains("좋았어요")));
            return Ok(());
        };
        assert_promised("draft", &first);
        input["draft"] = json!(candidate);
        let review = run("review", &input);
        assert_promised("review", &review);
        input["revision"] = json!({ "iteration": 1, "candidate": candidate, "feedback": review });
        run("draft", &input);
        input["draft"] = first["text"].clone();
        assert_promised("meta", &run("meta", &input));
        assert_promised("review", &run("review", &input));
    }

    #[test]
    fn any_json_is_answered_or_refused(text in "\\PC{0,60}", number in any::<i32>(), key in "photos|style|notes|draft|earlier|language|revision") {
        for value in [json!(text), json!(number), json!([text]), json!({ "text": text }), Value::Null, json!([[number]])] {
            let input = json!({ key.clone(): value });
            for agent in NAMES {
                if let Err(failure) = by_name(agent).unwrap().compute(&input) {
                    prop_assert_eq!(failure.status, Some(422));
                }
            }
        }
    }
}

mod backend {
    use std::sync::Arc;

    use super::*;
    use crate::{
        model::name::Name,
        runtime::ports::{AttemptRequest, AttemptTimeouts, Backend, Hold, Progress, TokioClock},
    };

    fn request(input: Value, slot: &Arc<()>) -> AttemptRequest {
        AttemptRequest {
            agent: Name::try_new("style").unwrap(),
            input: Arc::new(input),
            call_id: "c".into(),
            run_id: None,
            step: None,
            attempt: 1,
            idempotency_key: "k".into(),
            traceparent: None,
            deadline: std::time::Duration::from_secs(60),
            tenant: None,
            feature: None,
            priority: None,
            prompt: None,
            timeouts: AttemptTimeouts { first_token: None, stall: None },
            hold: Hold::of(Arc::clone(slot) as Arc<dyn Send + Sync>),
            relay: None,
            capture: None,
        }
    }

    #[tokio::test]
    async fn the_slot_is_free_once_the_work_has_ended() {
        let slot = Arc::new(());
        let progress = Progress::start(Arc::new(TokioClock::start()), None);
        let backend = by_name("style").unwrap();
        let asked = request(json!({}), &slot);
        let reply = backend.attempt(&asked, &progress).await.unwrap();
        assert_eq!(reply.output["basis"], 0);
        drop(asked);
        assert_eq!(Arc::strong_count(&slot), 1);
    }

    #[tokio::test]
    async fn a_leaver_frees_the_slot_only_with_the_end_of_the_work() {
        let slot = Arc::new(());
        let progress = Progress::start(Arc::new(TokioClock::start()), None);
        let backend = by_name("style").unwrap();
        let asked = request(json!({ "notes": "x ".repeat(100_000) }), &slot);
        let mut attempt = backend.attempt(&asked, &progress);
        let started = futures_util::poll!(attempt.as_mut()).is_pending();
        drop(attempt);
        drop(asked);
        // Blocking threads are no part of paused time: wait for the thread itself.
        while Arc::strong_count(&slot) > 1 {
            tokio::task::yield_now().await;
        }
        assert!(started);
    }
}
