"""The messages of Envoy's `envoy.service.ext_proc.v3`, as far as an endpoint picker needs them.

Fields and their numbers are those of Envoy's API; fields that are not listed are passed over, as protobuf does. The
packages that have all of Envoy's messages take a millisecond for each of these.
"""

from typing import Any

from google.protobuf import struct_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_PACKAGE = "penstock.envoy"
_STRUCT = "google.protobuf.Struct"
_PLAIN = {
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    # Of an enumeration.
    "int32": FieldDescriptorProto.TYPE_INT32,
    "string": FieldDescriptorProto.TYPE_STRING,
}
# Of each message, the number, the name and the type of its fields; * stands before types of fields with many values.
# Maps are lists of their entries.
_MESSAGES = {
    "HeaderValue": "1 key string, 2 value string, 3 raw_value bytes",
    "HeaderMap": "1 headers *HeaderValue",
    "HeaderValueOption": "1 header HeaderValue, 3 append_action int32",
    "HeaderMutation": "1 set_headers *HeaderValueOption",
    "NamedStruct": f"1 key string, 2 value {_STRUCT}",
    "Metadata": "1 filter_metadata *NamedStruct",
    "HttpHeaders": "1 headers HeaderMap, 3 end_of_stream bool",
    "HttpBody": "1 body bytes, 2 end_of_stream bool",
    "HttpTrailers": "",
    "ProtocolConfiguration": "1 request_body_mode int32, 2 response_body_mode int32",
    "ProcessingRequest": (
        "2 request_headers HttpHeaders, 3 response_headers HttpHeaders, 4 request_body HttpBody, "
        "5 response_body HttpBody, 6 request_trailers HttpTrailers, 7 response_trailers HttpTrailers, "
        "8 metadata_context Metadata, 9 attributes *NamedStruct, 11 protocol_config ProtocolConfiguration"
    ),
    "StreamedBodyResponse": "1 body bytes, 2 end_of_stream bool",
    "BodyMutation": "1 body bytes, 3 streamed_response StreamedBodyResponse",
    "CommonResponse": "2 header_mutation HeaderMutation, 3 body_mutation BodyMutation",
    # Of headers and of bodies, which have the same field.
    "Passed": "1 response CommonResponse",
    "TrailersResponse": "",
    "HttpStatus": "1 code int32",
    "ImmediateResponse": "1 status HttpStatus, 2 headers HeaderMutation, 3 body bytes",
    "ProcessingResponse": (
        "1 request_headers Passed, 2 response_headers Passed, 3 request_body Passed, 4 response_body Passed, "
        "5 request_trailers TrailersResponse, 6 response_trailers TrailersResponse, "
        f"7 immediate_response ImmediateResponse, 8 dynamic_metadata {_STRUCT}"
    ),
}
SERVICE, METHOD = "envoy.service.ext_proc.v3.ExternalProcessor", "Process"
# Of `ProcessingMode.BodySendMode` and `HeaderValueOption.HeaderAppendAction`.
BUFFERED, FULL_DUPLEX_STREAMED = 2, 4
OVERWRITE_IF_EXISTS_OR_ADD = 2

# Classes of messages, which are made at run time.
Message = Any


def _file() -> FileDescriptorProto:
    file = FileDescriptorProto(
        name="penstock/envoy.proto", package=_PACKAGE, syntax="proto3", dependency=[struct_pb2.DESCRIPTOR.name]
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for each in filter(None, fields.split(", ")):
            number, field, kind = each.split()
            plain = kind.lstrip("*")
            made = message.field.add(name=field, number=int(number), label=3 if kind.startswith("*") else 1)
            if plain in _PLAIN:
                made.type = _PLAIN[plain]
            else:
                made.type = FieldDescriptorProto.TYPE_MESSAGE
                made.type_name = f".{plain}" if "." in plain else f".{_PACKAGE}.{plain}"
    return file


def _classes() -> dict[str, Message]:
    pool = DescriptorPool()
    pool.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(_file().SerializeToString())
    names = (*(f"{_PACKAGE}.{name}" for name in _MESSAGES), _STRUCT)
    return {name.rpartition(".")[2]: GetMessageClass(pool.FindMessageTypeByName(name)) for name in names}


_CLASSES = _classes()
ProcessingRequest = _CLASSES["ProcessingRequest"]
ProcessingResponse = _CLASSES["ProcessingResponse"]
