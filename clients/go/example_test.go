package sessiond_test

import (
	"context"
	"fmt"

	sessiond "sessiond.dev/sessiond/clients/go"
	sessiondv1 "sessiond.dev/sessiond/gen/go/sessiond/v1"
)

// A session is created, gets a message, and is followed until its turn ends.
func Example() {
	if err := talk(context.Background()); err != nil {
		fmt.Println(err)
	}
}

func talk(ctx context.Context) error {
	client, err := sessiond.Dial() // finds the daemon of this user
	if err != nil {
		return err
	}
	defer client.Close()

	created, err := sessiond.Retry(ctx, client.Sessions.CreateSession,
		&sessiondv1.CreateSessionRequest{Driver: "echo", Workspace: "/srv/project"})
	if err != nil {
		return err
	}
	id := created.GetSession().GetSessionId()

	if _, err := sessiond.Retry(ctx, client.Sessions.Send,
		&sessiondv1.SendRequest{SessionId: id, Text: "hello"}); err != nil {
		return err
	}

	for event, err := range client.Subscribe(ctx, id).Events() {
		if err != nil {
			return err
		}
		switch body := event.GetBody().(type) {
		case *sessiondv1.Event_AssistantText:
			fmt.Print(body.AssistantText.GetDelta())
		case *sessiondv1.Event_TurnEnded:
			return nil
		case nil:
			// A kind that this client does not know yet: its seq counts, the rest is not for us.
		}
	}
	return nil
}
