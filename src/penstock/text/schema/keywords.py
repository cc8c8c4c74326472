"""Keywords of JSON Schema, by what becomes of them."""

# What a schema says to people.
REMARKS = frozenset(
    {"$comment", "$schema", "default", "deprecated", "description", "examples", "readOnly", "title", "writeOnly"}
)
DEFINITIONS = ("$defs", "definitions")
# Where a schema's keys are names and no keywords.
NAMED = frozenset({*DEFINITIONS, "patternProperties", "properties"})
VALUES = frozenset({"const", "enum"})
# Those whose values are a schema or a list of such.
INNER = frozenset({"additionalItems", "additionalProperties", "items", "prefixItems", "allOf", "anyOf", "oneOf"})
# What applies other schemas to the same value.
IN_PLACE = frozenset(
    {"$dynamicRef", "$recursiveRef", "$ref", "allOf", "anyOf", "dependentSchemas", "if", "not", "oneOf"}
)
BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
# Everything that is not among these is a remark, as JSON Schema has it.
ASSERTIONS = frozenset(
    {
        *(NAMED | VALUES | INNER | IN_PLACE | BOUNDS),
        "$anchor",
        "$id",
        "maxItems",
        "maxLength",
        "maxProperties",
        "minItems",
        "minLength",
        "minProperties",
        "multipleOf",
        "pattern",
        "required",
        "type",
    }
)
# What llguidance does not enforce, unless the value asks for nothing.
UNSUPPORTED = frozenset(
    {
        "$dynamicRef",
        "$recursiveRef",
        "contains",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "if",
        "not",
        "uniqueItems",
    }
)
# Other formats are remarks.
FORMATS = frozenset({"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"})
