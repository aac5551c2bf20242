// The Go client (clients/go) and the generated code (gen/go) are one module, so that the go_package of the
// protos is their real import path.
module sessiond.dev/sessiond

go 1.26.0

ignore (
	node_modules
	target
)

require (
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1
	google.golang.org/grpc v1.85.0
	google.golang.org/protobuf v1.36.12
)

require (
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/text v0.42.0 // indirect
)
