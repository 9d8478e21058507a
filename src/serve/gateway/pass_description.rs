//! What `/openapi.json` says of services as they are. Their routes take any method, so this stands beside them, once for each method that
//! a description can name. Routes nothing.

use utoipa::openapi::{
    Content, HttpMethod, OpenApi, OpenApiBuilder, Paths, Required, ResponseBuilder,
    path::{Operation, OperationBuilder},
    request_body::RequestBodyBuilder,
};

/// Whatever a service speaks.
const ANY_TYPE: &str = "*/*";

/// A service's root, and everything behind it.
const PATHS: [&str; 2] = ["/agents/{name}", "/agents/{name}/{path}"];
const METHODS: [(HttpMethod, &str); 8] = [
    (HttpMethod::Get, "get"),
    (HttpMethod::Put, "put"),
    (HttpMethod::Post, "post"),
    (HttpMethod::Delete, "delete"),
    (HttpMethod::Options, "options"),
    (HttpMethod::Head, "head"),
    (HttpMethod::Patch, "patch"),
    (HttpMethod::Trace, "trace"),
];

/// The description.
pub(super) fn description() -> OpenApi {
    let mut paths = Paths::new();
    for path in PATHS {
        for (method, name) in METHODS {
            let takes_body = matches!(method, HttpMethod::Put | HttpMethod::Post | HttpMethod::Patch);
            let place = if path == PATHS[0] { "root" } else { "path" };
            let operation = operation(format!("pass_{place}_{name}"), takes_body);
            paths.add_path_operation(path, vec![method], operation);
        }
    }
    OpenApiBuilder::new().paths(paths).build()
}

fn operation(id: String, takes_body: bool) -> Operation {
    let anything = || Content::builder().build();
    let said = ResponseBuilder::new()
        .description("the service's own answer, as it gave it; or an error of ours, which is an envelope")
        .content(ANY_TYPE, anything());
    let refused = |why: &str| ResponseBuilder::new().description(why).build();
    let operation = OperationBuilder::new()
        .operation_id(Some(id))
        .tag("services")
        .summary(Some(
            "Passes a request through to an agent's own service, unchanged, through the guards of the agent.",
        ))
        .description(Some("`path` may have any number of segments, and a query behind it."))
        .response("404", refused("no such agent, or none with a service of its own"))
        .response("503", refused("refused by a guard"))
        .response("default", said.build());
    let body = RequestBodyBuilder::new().content(ANY_TYPE, anything()).required(Some(Required::False)).build();
    if takes_body { operation.request_body(Some(body)).build() } else { operation.build() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_method_of_each_path_is_an_operation_of_its_own() {
        let described = serde_json::to_value(description()).unwrap();
        let mut ids = BTreeSet::new();
        for path in PATHS {
            for (_, method) in METHODS {
                let operation = &described["paths"][path][method];
                assert!(operation["responses"]["default"]["content"][ANY_TYPE].is_object(), "{method} {path}");
                ids.insert(operation["operationId"].as_str().unwrap().to_owned());
            }
        }
        assert_eq!(ids.len(), PATHS.len() * METHODS.len());
    }
}
